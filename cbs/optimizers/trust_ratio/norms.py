"""Norms of weights and directions: of whole tensors, and of their rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cbs.optimizers.trust_ratio.blocks import Tile


class Norm(NamedTuple):
    """A norm that can be put together from those of parts; 0 where there is nothing.

    Attributes:
        reduce: along one dimension, which is kept: ``(entries, dim, out)``.
        merge: of two parts: ``(one, other, out=)``.
    """

    reduce: Callable[[Tensor, int, Tensor | None], Tensor]
    merge: Callable[..., Tensor]


NORMS = {
    # Of absolute values, see below.
    "max": Norm(lambda entries, dim, out: torch.amax(entries, dim, keepdim=True, out=out), torch.maximum),
    "l2": Norm(lambda entries, dim, out: torch.linalg.vector_norm(entries, 2, dim, True, out=out), torch.hypot),
}


def measure(tile: Tile, name: str, *, merge: bool) -> None:
    """Norms of a tile's weights and of ``tile.out``, into ``tile.sizes``; overwrites ``tile.spare``.

    Args:
        tile: the tile.
        name: of the norm.
        merge: whether norms of other parts of the tensor are there already, to be put together with these.
    """
    if name == "max":
        # On a CPU amax of absolute values is many times faster than vector_norm(inf) or aminmax.
        torch.abs(tile.weight, out=tile.spare[0])
        torch.abs(tile.out, out=tile.spare[1])
        for pair, sizes in zip(tile.pairs, tile.sizes, strict=True):
            _measure(pair, 1, sizes, NORMS[name], merge)
        return
    parts = tile.weight.reshape(-1).split([out.numel() for out in tile.outs])
    weights = [part.view_as(out) for part, out in zip(parts, tile.outs, strict=True)]
    for index, views in enumerate((weights, tile.outs)):
        for entries, sizes in zip(views, tile.sizes, strict=True):
            _measure(entries, 0, [size[index] for size in sizes], NORMS[name], merge)


def _measure(entries: Tensor, lead: int, sizes: list[Tensor], norm: Norm, merge: bool) -> None:
    """Norms of ``[..., count, rows, columns, ...]`` with ``lead`` dimensions before the count."""
    whole, *lines = sizes
    if entries.numel() == 0:
        return
    if lines:
        rows, columns = lines
        norm.reduce(entries, lead + 2, rows)
        _put(entries, lead + 1, columns, norm, merge)
        entries = rows
    _put(entries.flatten(lead + 1), lead + 1, whole.flatten(lead + 1), norm, merge)


def _put(entries: Tensor, dim: int, size: Tensor, norm: Norm, merge: bool) -> None:
    if merge:
        norm.merge(size, norm.reduce(entries, dim, None), out=size)
    else:
        norm.reduce(entries, dim, size)
