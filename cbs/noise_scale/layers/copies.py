"""One copy of the parameters per group, for models so small that the time goes into calls.

With copies, autograd itself finds the gradient of every group, and no layer needs a node in Python, which takes several
times as long between the products of a backward pass as on its own: its code and data have left the caches. The
gradients of all groups have to fit until the last of them is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbs.noise_scale.layers.forward_pass import refuse_second_derivatives

COPIED_BYTES = 2**22
"""Gradients of all groups that may be there at once."""

MOST_COPIES = 4
"""Groups up to which layers that take one call per group are still fast."""


def few_copies(groups: int, parameters: Sequence[Tensor]) -> bool:
    """Whether copies of the parameters are worth while."""
    if not parameters or not 2 <= groups <= MOST_COPIES:
        return False
    # Hooks would be called for parameters that are not used, too, which they do not expect. One of them is our own.
    if any(len(tensor._backward_hooks or ()) > 1 or tensor._post_accumulate_grad_hooks for tensor in parameters):
        return False
    nbytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return groups * nbytes <= COPIED_BYTES and all(parameter.dtype.itemsize >= 4 for parameter in parameters)


class Copies(torch.autograd.Function):
    """Parameter tensors repeated along a new first dimension, without a copy in memory."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, groups: int, sum: Callable[[int, Tensor], Tensor | None], *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.sum = sum
        ctx.set_materialize_grads(False)
        return tuple(parameter.detach().expand(groups, *parameter.shape) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        refuse_second_derivatives("the model")
        totals = (None if values is None else ctx.sum(place, values) for place, values in enumerate(gradients))
        return None, None, *totals


_apply = super(torch.autograd.Function, Copies).apply
"""``Copies.apply`` without its Python part, which serves functorch."""


def copies(
    groups: int, parameters: Sequence[Tensor], sum: Callable[[int, Tensor], Tensor | None]
) -> tuple[Tensor, ...]:
    """Copies of parameter tensors, shape ``[groups, *parameter.shape]``.

    Args:
        groups: number of copies.
        parameters: the tensors.
        sum: called in the backward pass with the place of a tensor among them and the gradients of its copies; returns
            the gradient of the tensor, or ``None``.
    """
    return _apply(groups, sum, *parameters)
