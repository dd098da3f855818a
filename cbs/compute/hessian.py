"""Products of the Hessian of a mean loss with vectors."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cbs.errors import ConfigError, reason

# Parts of torch's messages about functions that can be differentiated only once: fused kernels and compiled models
_REFUSALS = ("derivative for", "double backward", "donated buffer")

# Node that a `once_differentiable` function leaves in the graph of a gradient; torch raises no error for it
_HIDDEN = "torch::autograd::Error"


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return all of these tensors, one per parameter, as one vector in float64, ``[d]``."""
    return torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])


def shaped(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a vector as :func:`flat` joined them, in shapes and types of ``like``."""
    parts = vector.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor).to(tensor) for part, tensor in zip(parts, like, strict=True)]


def hessian_product(
    loss: Callable[[Any], Tensor], batch: Any, parameters: Sequence[Tensor]
) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    """Return products of the Hessian of the mean loss of ``batch`` with vectors, all from one graph of the gradient.

    >>> w, x = torch.nn.Parameter(torch.tensor([1.0, 2.0])), torch.tensor([1.0, 2.0])
    >>> product = hessian_product(lambda batch: 1.5 * (batch * w).square().sum(), x, [w])
    >>> product([torch.tensor([1.0, 1.0])])
    (tensor([ 3., 12.]),)

    Args:
        loss: function from a batch to the mean loss over its examples, a scalar.
        batch: the examples.
        parameters: parameters of the Hessian.

    Returns:
        Function from a direction, one tensor per parameter, to the Hessian times the direction, likewise.

    Raises:
        ConfigError: here or from the product, if a part of the model has no second derivative.
    """
    with _second_derivatives(), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        value = loss(batch)
        # The seed requires a gradient, so that the gradient of a linear part has a graph, too.
        seed = torch.ones_like(value, requires_grad=True)
        gradient = torch.autograd.grad(value, parameters, seed, create_graph=True, materialize_grads=True)
    if _HIDDEN in _nodes(gradient):
        raise ConfigError("second derivatives are needed, but the model has a once_differentiable function")
    used = [index for index, entry in enumerate(gradient) if entry.requires_grad]

    def product(direction: Sequence[Tensor]) -> Sequence[Tensor]:
        with _second_derivatives():
            return torch.autograd.grad(
                [gradient[index] for index in used],
                parameters,
                [direction[index] for index in used],
                retain_graph=True,
                materialize_grads=True,
            )

    return product


@contextlib.contextmanager
def _second_derivatives() -> Iterator[None]:
    """Turn torch's errors about functions that can be differentiated only once into a ConfigError."""
    try:
        yield
    except RuntimeError as error:
        if not any(phrase in str(error) for phrase in _REFUSALS):
            raise
        raise ConfigError(
            f"second derivatives are needed, which compiled models and some kernels do not have: {reason(error)}"
        ) from error


def _nodes(tensors: Sequence[Tensor]) -> set[str]:
    """Return the names of the nodes in the graph of ``tensors``."""
    seen, ahead = set(), [tensor.grad_fn for tensor in tensors]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
    return {node.name() for node in seen}
