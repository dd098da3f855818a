"""What one call of a layer contributes to the gradient of one parameter tensor, group by group."""

from __future__ import annotations

import torch
from torch import Tensor


class Contribution:
    """Contributions of equally large groups to one parameter tensor.

    The contributions are only written out in blocks of groups, so that a block stays in the cache between the product
    that makes it and the sums that read it.

    Attributes:
        groups: number of groups.
        nbytes: bytes of one group's contribution.
    """

    groups: int
    nbytes: int

    def dense(self, start: int, stop: int) -> Tensor:
        """Contributions of the groups from ``start`` to before ``stop``, shape ``[stop - start, *parameter.shape]``."""
        raise NotImplementedError

    def total(self) -> Tensor:
        """Sum over groups, without the single contributions."""
        raise NotImplementedError

    def merged(self, by: int) -> Contribution:
        """The contributions of so many neighbouring groups together."""
        raise NotImplementedError

    def square(self) -> Tensor | None:
        """Sum over groups of squared norms, without writing the contributions out; ``None`` where this kind does not
        know how, or writing out is cheaper."""
        return None


class Dense(Contribution):
    """Contributions that are written out already.

    Args:
        values: shape ``[groups, *parameter.shape]``.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.groups = values.shape[0]
        self.nbytes = values[0].numel() * values.element_size()

    def dense(self, start: int, stop: int) -> Tensor:
        return self.values[start:stop]

    def total(self) -> Tensor:
        return sum_of_groups(self.values)

    def merged(self, by: int) -> Contribution:
        values = self.values.unflatten(0, (-1, by))
        return Dense(values.sum(1, dtype=accumulator(values.dtype)))


def sum_of_groups(values: Tensor) -> Tensor:
    """Sum over the first dimension, in float32 or better."""
    return values.sum(0, dtype=accumulator(values.dtype))


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type that sums of many values of type ``dtype`` are kept in."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def product(left: Tensor, right: Tensor) -> Tensor:
    """Sum over all entries of the product of two tensors of the same shape."""
    dtype = accumulator(right.dtype)
    return torch.dot(left.to(dtype).flatten(), right.to(dtype).flatten())
