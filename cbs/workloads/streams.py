"""Training streams that any workload can use: random examples, with replacement, in an order fixed by a generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cbs.workloads.base import TrainingStream

BLOCK = 4096
"""Indices drawn at a time, always, so that the sequence does not depend on how many are asked for."""

Rows = Tensor | tuple[Tensor, ...]


class RandomIndices:
    """Uniform indices below ``count``, with replacement.

    The same generator gives the same sequence however it is cut into batches: ``next(4)`` twice equals ``next(8)``.

    Args:
        count: number of examples there are.
        generator: a CPU generator; consumed a block at a time.
    """

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count = count
        self._generator = generator
        self._left = torch.empty(0, dtype=torch.int64)

    def next(self, examples: int) -> Tensor:
        """The next ``examples`` indices, shape ``[examples]``."""
        while len(self._left) < examples:
            self._left = torch.cat([self._left, torch.randint(self._count, (BLOCK,), generator=self._generator)])
        drawn, self._left = self._left[:examples], self._left[examples:]
        return drawn

    def skip(self, examples: int) -> None:
        """Go on after the next ``examples`` indices."""
        while examples > 0:
            examples -= len(self.next(min(examples, BLOCK)))


class RandomExamples:
    """Rows of one tensor, or the same rows of several, drawn at random with replacement.

    Args:
        data: a tensor or a tuple of tensors whose first dimension counts examples.
        generator: a CPU generator.
    """

    def __init__(self, data: Rows, generator: torch.Generator) -> None:
        self._data = data
        self._indices = RandomIndices(len(data if isinstance(data, Tensor) else data[0]), generator)

    def next(self, examples: int) -> Rows:
        """The next ``examples`` rows, in the structure of the data."""
        rows = self._indices.next(examples)
        return self._data[rows] if isinstance(self._data, Tensor) else tuple(part[rows] for part in self._data)

    def skip(self, examples: int) -> None:
        """Go on after the next ``examples`` rows, which are not gathered."""
        self._indices.skip(examples)


def skip(stream: TrainingStream, sizes: Sequence[int]) -> None:
    """Go on after batches of these sizes: by the stream's own ``skip(examples)``, where it has one, else they are drawn
    again one by one."""
    if hasattr(stream, "skip"):
        stream.skip(sum(sizes))
        return
    for size in sizes:
        stream.next(size)
