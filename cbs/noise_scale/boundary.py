"""The end of a forward pass, where the backward pass enters the model."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

_sending = 0

Arrived = Callable[[Sequence[GradientEdge], Sequence[Tensor | None]], None]
"""Callback of a backward pass: receives the edges at the end of a forward pass and the gradients that arrive there."""


@contextmanager
def without_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Run the block with empty ``.grad``, and restore it afterwards."""
    kept = [parameter.grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


@contextmanager
def sending(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Mark backward passes inside the block as auxiliary, that is as not part of training.

    Nothing in it reaches ``.grad``, not even from a backward pass inside a backward pass, as in reversible layers, and
    the backward pass of training draws the same random numbers as without it.
    """
    global _sending
    _sending += 1
    devices = [parameter.device for parameter in parameters[:1] if parameter.device.type not in ("cpu", "meta")]
    kind = devices[0].type if devices else "cpu"
    try:
        with without_gradients(parameters), torch.random.fork_rng(devices, device_type=kind):
            yield
    finally:
        _sending -= 1


def is_sending() -> bool:
    """Return whether the current backward pass is auxiliary; hooks that measure training ignore its gradients."""
    return _sending > 0


class BeforeBackward:
    """Calls a function before the next backward pass, which ``Tensor.backward`` and all trainers start through
    ``torch.autograd.backward``: it is replaced until then."""

    def __init__(self) -> None:
        self._restore: Callable[[], None] = lambda: None

    def call(self, look: Callable[[Any, Any], None]) -> None:
        """Call ``look`` with the tensors that are differentiated and with their gradients, once, instead of others."""
        self.forget()
        original = torch.autograd.backward

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            self.forget()
            look(tensors, grad_tensors)
            original(tensors, grad_tensors, *args, **kwargs)

        def restore() -> None:
            if torch.autograd.backward is backward:
                torch.autograd.backward = original

        self._restore = restore
        torch.autograd.backward = backward

    def forget(self) -> None:
        """Do not look at the next backward pass."""
        restore, self._restore = self._restore, lambda: None
        restore()


class Boundary(torch.autograd.Function):
    """Identity function that calls ``arrived`` with all gradients at once before it passes them on.

    A gradient that arrives here comes from outside the forward pass: uses of an output inside the pass are not counted.
    """

    @staticmethod
    def forward(ctx: Any, arrived: Arrived, edges: Sequence[GradientEdge], *tensors: Tensor) -> tuple[Tensor, ...]:
        # an output that the loss does not use has no gradient; zeros in its place would count as one that arrived
        ctx.set_materialize_grads(False)
        ctx.arrived, ctx.edges = arrived, edges
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.arrived(ctx.edges, gradients)
        return (None, None, *gradients)


def differentiable(output: Any) -> list[Tensor]:
    """Return the tensors of an output, in any nesting, that have an autograd history."""
    return [leaf for leaf in tensors_of(output) if leaf.grad_fn is not None]


def tensors_of(output: Any) -> list[Tensor]:
    """Return the dense tensors of an output, in any nesting."""
    return [leaf for leaf in _leaves(output) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]


def bounded(output: Any, arrived: Arrived) -> Any:
    """Return the same output with the tensors of :func:`differentiable` passed through a :class:`Boundary`."""
    inside = differentiable(output)
    if not inside:
        return output
    outside = Boundary.apply(arrived, [get_gradient_edge(tensor) for tensor in inside], *inside)
    return _replaced(output, {id(tensor): new for tensor, new in zip(inside, outside, strict=True)})


def _leaves(output: Any) -> list[Any]:
    leaves = []
    for leaf in tree_leaves(output):
        leaves += _leaves([getattr(leaf, each.name) for each in fields(leaf)]) if _is_record(leaf) else [leaf]
    # an output may hold a tensor twice, whose gradient must not be counted twice
    return list({id(leaf): leaf for leaf in leaves}.values())


def _replaced(output: Any, new: dict[int, Tensor]) -> Any:
    leaves, structure = tree_flatten(output)
    for place, leaf in enumerate(leaves):
        if _is_record(leaf):
            leaves[place] = copy.copy(leaf)
            for each in fields(leaf):
                # frozen ones, too, and without __init__, which may check or compute
                object.__setattr__(leaves[place], each.name, _replaced(getattr(leaf, each.name), new))
        else:
            leaves[place] = new.get(id(leaf), leaf)
    return tree_unflatten(leaves, structure)


def _is_record(leaf: Any) -> bool:
    """Return whether a leaf of the pytree is a dataclass instance, which torch does not look into."""
    return is_dataclass(leaf) and not isinstance(leaf, type)
