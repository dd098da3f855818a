"""The end of a forward pass, where its backward pass begins."""

from __future__ import annotations

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
"""Called in a backward pass with the ends of a forward pass and the gradients that arrive at them."""


@contextmanager
def sending() -> Iterator[None]:
    """Within the block, backward passes are auxiliary, not those of training."""
    global _sending
    _sending += 1
    try:
        yield
    finally:
        _sending -= 1


def is_sending() -> bool:
    """Whether a gradient belongs to an auxiliary pass; hooks that watch training leave it alone."""
    return _sending > 0


class Boundary(torch.autograd.Function):
    """Hands tensors on as they are, and their gradients too, once ``arrived`` has seen all of them.

    A gradient that arrives here comes from outside the pass: what an output is used for inside it is not counted.
    """

    @staticmethod
    def forward(ctx: Any, arrived: Arrived, edges: Sequence[GradientEdge], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.arrived, ctx.edges = arrived, edges
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.arrived(ctx.edges, gradients)
        return (None, None, *gradients)


def differentiable(output: Any) -> list[Tensor]:
    """The tensors of an output, in any nesting, that have a history."""
    return [leaf for leaf in tensors_of(output) if leaf.grad_fn is not None]


def tensors_of(output: Any) -> list[Tensor]:
    """The tensors of an output, in any nesting."""
    return [leaf for leaf in _leaves(output) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]


def bounded(output: Any, arrived: Arrived) -> Any:
    """The same output, the tensors of :func:`differentiable` behind a :class:`Boundary`."""
    inside = differentiable(output)
    if not inside:
        return output
    outside = Boundary.apply(arrived, [get_gradient_edge(tensor) for tensor in inside], *inside)
    return _replaced(output, {id(tensor): new for tensor, new in zip(inside, outside, strict=True)})


def _leaves(output: Any) -> list[Any]:
    leaves = []
    for leaf in tree_leaves(output):
        leaves += _leaves([getattr(leaf, each.name) for each in fields(leaf)]) if _is_record(leaf) else [leaf]
    return list({id(leaf): leaf for leaf in leaves}.values())


def _replaced(output: Any, new: dict[int, Tensor]) -> Any:
    leaves, structure = tree_flatten(output)
    for place, leaf in enumerate(leaves):
        if _is_record(leaf):
            leaves[place] = copy.copy(leaf)
            for each in fields(leaf):
                object.__setattr__(leaves[place], each.name, _replaced(getattr(leaf, each.name), new))
        else:
            leaves[place] = new.get(id(leaf), leaf)
    return tree_unflatten(leaves, structure)


def _is_record(leaf: Any) -> bool:
    """Whether a leaf is a dataclass that is not known to torch."""
    return is_dataclass(leaf) and not isinstance(leaf, type)
