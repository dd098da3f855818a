"""Training streams for any workload: random examples with replacement, in an order fixed by a generator; and their
batches, divided.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from cbs.workloads.base import Batch, TrainingStream

# Number of indices drawn at a time, always the same, so that the sequence does not depend on how many are
# requested.
BLOCK = 4096

Rows = Tensor | tuple[Tensor, ...]


class DrawnExamples:
    """Examples made from random numbers, the same however they are divided into batches.

    Random numbers are drawn for a block of examples at a time, so ``next(4)`` twice equals ``next(8)``, as long as an
    example depends only on its own numbers.

    Args:
        draw: function from a number of examples and the generator to their random numbers, tensors with that many rows.
        make: function from rows of these to examples.
        generator: a CPU generator.
        block: number of examples drawn at a time.
    """

    def __init__(
        self,
        draw: Callable[[int, torch.Generator], tuple[Tensor, ...]],
        make: Callable[..., Any],
        generator: torch.Generator,
        block: int = 64,
    ) -> None:
        self._draw = draw
        self._make = make
        self._generator = generator
        self._block = block
        self._left: tuple[Tensor, ...] = ()

    def next(self, examples: int) -> Any:
        """Return the next ``examples`` examples."""
        return self._make(*self._take(examples))

    def skip(self, examples: int) -> None:
        """Continue after the next ``examples`` examples, which are drawn block by block but returned by no batch."""
        while examples > 0:
            examples -= len(self._take(min(examples, self._block))[0])

    def _take(self, examples: int) -> tuple[Tensor, ...]:
        blocks = [self._left] if self._left else []
        ready = len(self._left[0]) if self._left else 0
        for _ in range(max(-(-(examples - ready) // self._block), 0 if blocks else 1)):
            blocks.append(self._draw(self._block, self._generator))
        parts = tuple(torch.cat(part) for part in zip(*blocks, strict=True)) if len(blocks) > 1 else blocks[0]
        self._left = tuple(part[examples:] for part in parts)
        return tuple(part[:examples] for part in parts)


class RandomIndices(DrawnExamples):
    """Uniform indices below ``count``, with replacement.

    The same generator gives the same sequence, however it is divided: ``next(4)`` twice equals ``next(8)``.

    Args:
        count: number of examples to draw from.
        generator: a CPU generator; consumed a block at a time.
    """

    def __init__(self, count: int, generator: torch.Generator) -> None:
        super().__init__(self._draw_indices, self._as_they_are, generator, BLOCK)
        self._count = count

    def _draw_indices(self, examples: int, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randint(self._count, (examples,), generator=generator),)

    @staticmethod
    def _as_they_are(indices: Tensor) -> Tensor:
        return indices


class RandomExamples:
    """Rows of one tensor, or the same rows of several, drawn at random with replacement.

    >>> stream = RandomExamples((torch.randn(100, 3), torch.arange(100)), torch.Generator().manual_seed(0))
    >>> x, y = stream.next(8)
    >>> x.shape, y.shape
    (torch.Size([8, 3]), torch.Size([8]))

    Args:
        data: a tensor or a tuple of tensors whose first dimension counts examples.
        generator: a CPU generator.
    """

    def __init__(self, data: Rows, generator: torch.Generator) -> None:
        self._data = data
        self._indices = RandomIndices(len(data if isinstance(data, Tensor) else data[0]), generator)

    def next(self, examples: int) -> Rows:
        """Return the next ``examples`` rows, in the structure of the data."""
        rows = self._indices.next(examples)
        return self._data[rows] if isinstance(self._data, Tensor) else tuple(part[rows] for part in self._data)

    def skip(self, examples: int) -> None:
        """Continue after the next ``examples`` rows, which are not gathered."""
        self._indices.skip(examples)


def skip(stream: TrainingStream, sizes: Sequence[int]) -> None:
    """Continue a stream after batches of these sizes: by its own ``skip(examples)`` if it has one; otherwise the
    batches are drawn again one by one."""
    if hasattr(stream, "skip"):
        stream.skip(sum(sizes))
        return
    for size in sizes:
        stream.next(size)


def split_batch(batch: Batch, sizes: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """Yield the parts of a batch that hold ``sizes`` examples, each with its size.

    >>> [(size, part.tolist()) for size, part in split_batch(torch.arange(5), [3, 2])]
    [(3, [0, 1, 2]), (2, [3, 4])]
    """
    if len(sizes) == 1:
        yield sizes[0], batch
        return
    leaves, structure = tree_flatten(batch)
    parts = [leaf.split(list(sizes)) if isinstance(leaf, Tensor) else [leaf] * len(sizes) for leaf in leaves]
    for index, size in enumerate(sizes):
        yield size, structure.unflatten([part[index] for part in parts])
