r"""The noise scale weighted with the curvature, :math:`B_{noise} = tr(H\Sigma)/G^\top H G` (McCandlish et al. 2018).

Equation 2.8. The quadratic statistic is :math:`T(g) = g^\top H g`, taken at a checkpoint by Hessian-vector products.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cbs.errors import ConfigError, reason
from cbs.noise_scale.moments import Moments, Sizes, solve_moments
from cbs.noise_scale.passes import first_dimension
from cbs.noise_scale.state import State

SYMBOL = r"B_{\mathrm{noise}}"

_REFUSALS = ("derivative for", "double backward", "donated buffer")
"""What torch says of what can be differentiated once only: a fused kernel, or a compiled model."""

_HIDDEN = "torch::autograd::Error"
"""Node that a ``once_differentiable`` function leaves in the graph of a gradient; torch passes it over in silence."""


def hessian_moments(
    model: nn.Module,
    loss: Callable[[Any], Tensor],
    groups: Sequence[Any],
    curvature: Any,
    sizes: Sequence[int] | None = None,
) -> Moments:
    r"""Unbiased estimates of :math:`G^\top H G` (signal) and :math:`tr(H\Sigma)` (noise), tensor by tensor.

    The entry of a parameter tensor is its part of the sum over the rows of H, so entries add up; each may be negative,
    and so may their sums where H is indefinite. H is the Hessian of the mean loss of ``curvature``; it has to be
    independent of the groups, and then the expectation is that of the true Hessian. One call costs one gradient and one
    Hessian-vector product per group, plus one gradient with its graph, whose memory is that of a training step or two.

    Repeat it on fresh batches, average signals and noises, and divide the averages: the ratio of a single call is noisy
    and biased. The noise scale is in examples.

    Weights, gradients, buffers, modes and torch's random state stay as they are. The loss is that of the model's mode:
    with dropout on, it is a random function. Attention runs on torch's plain kernels, as the fused ones have no second
    derivative; kinks, as those of ReLU, count as straight.

    Args:
        model: whose trainable parameters the gradient is taken in.
        loss: mean loss over the examples of a batch, a scalar, computed with ``model``.
        groups: at least two independent batches.
        curvature: a batch independent of them, on which H is taken.
        sizes: examples of each group; by default the first dimension of the first tensor in it.

    Returns:
        One entry per trainable parameter tensor, in the order of ``model.parameters()``.

    Raises:
        ConfigError: if there are fewer than two groups, nothing to train, or a part without second derivative.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("the model has no trainable parameter; there is no gradient to measure")
    if len(groups) < 2:
        raise ConfigError(f"the Hessian-weighted noise scale compares groups of examples: pass two, not {len(groups)}")
    counts = [first_dimension((group,), {}) for group in groups] if sizes is None else list(sizes)
    if len(counts) != len(groups) or min(counts) < 1:
        raise ConfigError(f"sizes must be a positive number of examples for each of {len(groups)} groups, got {sizes}")
    total = sum(counts)
    before = State(model, random=True)
    try:
        with torch.enable_grad():
            gradients = [torch.autograd.grad(loss(group), parameters, materialize_grads=True) for group in groups]
            product = hessian_product(loss, curvature, parameters)
            products = [product(gradient) for gradient in gradients]
    finally:
        before.restore()
    shares = [count / total for count in counts]
    forms = torch.stack([_inner(g, h) for g, h in zip(gradients, products, strict=True)])
    small = torch.tensordot(torch.tensor(shares).to(forms), forms, dims=1)
    big = _inner(_mean(gradients, shares), _mean(products, shares))
    effective = Sizes(small=total / len(counts), big=total, groups=len(counts))
    signal, noise = solve_moments(small, effective.small, big, effective.big)
    return Moments(indices=tuple(range(len(parameters))), signal=signal, noise=noise, sizes=effective)


def hessian_product(
    loss: Callable[[Any], Tensor], batch: Any, parameters: Sequence[Tensor]
) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
    """Products of the Hessian of the mean loss of ``batch`` with directions, all from one graph of the gradient.

    Args:
        loss: mean loss over the examples of a batch, a scalar.
        batch: examples.
        parameters: that the Hessian is taken in.

    Returns:
        A direction, one tensor for each parameter, to the Hessian times it, likewise.

    Raises:
        ConfigError: here or from the product, if a part of the model has no second derivative.
    """
    with _second_derivatives(), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        value = loss(batch)
        # A seed with a graph of its own, so that the gradient of a linear part has one too.
        seed = torch.ones_like(value, requires_grad=True)
        gradient = torch.autograd.grad(value, parameters, seed, create_graph=True, materialize_grads=True)
    if _HIDDEN in _nodes(gradient):
        raise ConfigError("second derivatives are needed; the model has a once_differentiable function")
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
    """Say in one line what torch says where something can be differentiated once only."""
    try:
        yield
    except RuntimeError as error:
        if not any(phrase in str(error) for phrase in _REFUSALS):
            raise
        raise ConfigError(
            f"second derivatives are needed, which compiled models and some kernels lack: {reason(error)}"
        ) from error


def _nodes(tensors: Sequence[Tensor]) -> set[str]:
    """Names of the nodes in the graph of ``tensors``."""
    seen, ahead = set(), [tensor.grad_fn for tensor in tensors]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
    return {node.name() for node in seen}


def _inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return torch.stack([(a.double() * b.double()).sum() for a, b in zip(left, right, strict=True)])


def _mean(vectors: Sequence[Sequence[Tensor]], shares: Sequence[float]) -> list[Tensor]:
    return [
        sum(share * entry.double() for share, entry in zip(shares, entries, strict=True))
        for entries in zip(*vectors, strict=True)
    ]
