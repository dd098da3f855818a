"""Norms of weights and directions: of whole tensors, and of their rows and columns."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cbs.optimizers.trust_ratio.blocks import ParameterBlock, Sizes

NORMS: dict[str, Callable[[Tensor, int, Tensor], Tensor]] = {
    "max": lambda entries, dim, out: torch.amax(entries, dim, keepdim=True, out=out),  # of absolute values
    "l2": lambda entries, dim, out: torch.linalg.vector_norm(entries, 2, dim, True, out=out),
}
"""Norms along one dimension, which is kept: ``(entries, dim, out)``."""


def measure(block: ParameterBlock) -> None:
    """Compute norms of a block's weights and of ``block.out`` into ``block.sizes``; overwrites ``block.spare``."""
    name = block.measure.norm
    if name == "max" and not block.alone:
        # On a CPU amax of absolute values is many times faster than vector_norm(inf) or aminmax.
        torch.abs(block.weight, out=block.spare[0])
        torch.abs(block.out, out=block.spare[1])
        for pair, sizes in zip(block.spares, block.sizes, strict=True):
            _measure(pair, 1, sizes, name)
        return
    for index, entries in enumerate((block.weight, block.out)):
        if name == "max":
            entries = torch.abs(entries, out=block.spare[0])
        parts = entries.reshape(-1).split([out.numel() for out in block.outs])
        for part, out, sizes in zip(parts, block.outs, block.sizes, strict=True):
            _measure(part.view_as(out), 0, [size[index] for size in sizes], name)


def _measure(entries: Tensor, lead: int, sizes: Sizes, name: str) -> None:
    """Compute norms of ``[..., count, rows, columns, ...]`` with ``lead`` dimensions before the count."""
    whole, *lines = sizes
    if entries.numel() == 0:
        return
    if lines:
        rows, columns = lines
        NORMS[name](entries, lead + 2, rows)
        NORMS[name](entries, lead + 1, columns)
        entries = rows
    NORMS[name](entries.flatten(lead + 1), lead + 1, whole.flatten(lead + 1))
