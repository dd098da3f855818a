"""How a parameter is read as matrices ``[out, in]``: which dimension is which side, and which dimension counts
matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor

Layout = Literal["out_in", "in_out", "experts_out_in", "experts_in_out"]
"""``out_in``: ``[out, in]`` as in ``nn.Linear``, and kernels ``[out, in, ...]``, flattened behind the first dimension.
``in_out``: ``[in, out]``, as in the ``Conv1D`` of transformers, and transposed convolutions ``[in, out, ...]``.
``experts_*``: a stack of separate matrices, ``[experts, out, in]`` or ``[experts, in, out]``."""

LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def fans(shape: Sequence[int], layout: Layout = "out_in") -> tuple[int, int]:
    """Return the outputs and inputs, ``(out, in)``, of one matrix of a parameter; every location of a kernel counts as
    an input.
    """
    first, *rest = shape[1:] if layout.startswith("experts") else shape
    if layout.endswith("out_in"):
        return first, math.prod(rest)
    return rest[0], first * math.prod(rest[1:])


def as_matrices(tensor: Tensor, layout: Layout = "out_in") -> Tensor:
    """Return ``tensor`` as ``[out, in]`` or ``[experts, out, in]``; a view where strides allow it."""
    if layout.startswith("experts"):
        return tensor if layout == "experts_out_in" else tensor.mT
    return (tensor if layout == "out_in" else tensor.transpose(0, 1)).flatten(1)


def as_parameter(matrices: Tensor, shape: Sequence[int], layout: Layout = "out_in") -> Tensor:
    """Return the inverse of :func:`as_matrices`, for a parameter of ``shape``."""
    if layout == "out_in":
        return matrices.reshape(shape)
    if layout == "in_out":
        return matrices.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)
    return matrices if layout == "experts_out_in" else matrices.mT
