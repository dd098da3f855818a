"""Norms of weights and directions: of whole tensors, and of their rows and columns."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from cbs.optimizers.trust_ratio.blocks import Tile, unflatten


class Norm(ABC):
    """A norm that can be put together from those of parts."""

    @abstractmethod
    def measure(self, tile: Tile, merge: bool) -> None:
        """Norms of a tile's weights and of ``tile.out``, into ``tile.sizes``; overwrites ``tile.spare``.

        Args:
            tile: the tile.
            merge: whether norms of other parts of the tensor are there already, to be put together with these.
        """


class MaxNorm(Norm):
    """The largest absolute value."""

    def measure(self, tile: Tile, merge: bool) -> None:
        # On a CPU amax of absolute values is many times faster than vector_norm(inf) or aminmax.
        torch.abs(tile.weight, out=tile.spare[0])
        torch.abs(tile.out, out=tile.spare[1])
        for pair, (whole, *lines) in zip(tile.pairs, tile.sizes, strict=True):
            if pair.numel() == 0:
                torch._foreach_zero_([whole, *lines])
                continue
            if lines:
                rows, columns = lines
                part = _put(pair, 3, rows, merge)
                _put(pair, 2, columns, merge)
                _put(part.flatten(2), 2, whole.flatten(2), merge)
            else:
                _put(pair.flatten(2), 2, whole.flatten(2), merge)


def _put(pair: Tensor, dim: int, size: Tensor, merge: bool) -> Tensor:
    if not merge:
        return torch.amax(pair, dim, keepdim=True, out=size)
    part = pair.amax(dim, keepdim=True)
    torch.maximum(size, part, out=size)
    return part


class EuclideanNorm(Norm):
    """The square root of the sum of squares."""

    def measure(self, tile: Tile, merge: bool) -> None:
        for index, entries in enumerate((unflatten(tile.weight, tile.lines), tile.lines)):
            for flat, sizes, stack in zip(entries, tile.sizes, tile.stacks, strict=True):
                _put_euclidean(flat, 1, sizes[0][index].flatten(1), merge)
                for dim, size in zip((2, 1), sizes[1:], strict=False):
                    _put_euclidean(flat.view(stack.shape), dim, size[index], merge)


def _put_euclidean(entries: Tensor, dim: int, size: Tensor, merge: bool) -> None:
    if not merge:
        torch.linalg.vector_norm(entries, dim=dim, keepdim=True, out=size)
    else:
        torch.hypot(size, torch.linalg.vector_norm(entries, dim=dim, keepdim=True), out=size)


NORMS: dict[str, Norm] = {"max": MaxNorm(), "l2": EuclideanNorm()}
"""The norms by name."""
