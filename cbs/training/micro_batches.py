"""Division of the examples of a step over ranks, and into forward and backward passes that fit into memory.

The gradient of a step is that of the mean loss over its examples, however they are divided, so every part is weighted
by its number of examples. Where a pass does not fit into memory, :func:`cbs.compute.pass_sizes.halved` gives the next
size to try.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.utils._pytree import tree_flatten

from cbs.workloads.base import Batch


class PassTooLarge(MemoryError):
    """Memory was full in a training step; the same step may fit with smaller passes.

    Attributes:
        examples: number of examples in the largest forward and backward pass of that step.
    """

    def __init__(self, examples: int, why: str) -> None:
        self.examples = examples
        super().__init__(why)


def split_batch(batch: Batch, sizes: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """Yield the parts of a batch that hold ``sizes`` examples, each with its size."""
    if len(sizes) == 1:
        yield sizes[0], batch
        return
    leaves, structure = tree_flatten(batch)
    parts = [leaf.split(list(sizes)) if isinstance(leaf, Tensor) else [leaf] * len(sizes) for leaf in leaves]
    for index, size in enumerate(sizes):
        yield size, structure.unflatten([part[index] for part in parts])
