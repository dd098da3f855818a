"""Check whether a training step has the same result however its examples are divided into passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbs.compute.state import State


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """Comparison of two ways to divide the examples of a step into passes.

    Attributes:
        gradients: whether the gradients of the step differ by more than rounding.
        drew: whether the passes drew random numbers.
        drew_others: whether the two ways left the random generators in different states.
        buffer: name of a buffer that has different values afterwards; empty if there is none.
    """

    gradients: bool
    drew: bool
    drew_others: bool
    buffer: str

    @property
    def difference(self) -> str:
        """How the result depends on the division, in words; empty if it does not."""
        if self.buffer:
            return f"buffer {self.buffer!r} has other values after smaller passes"
        if self.drew_others or (self.drew and self.gradients):
            return "smaller passes draw other random numbers"
        return "the gradient of a step differs in smaller passes" if self.gradients else ""


def compare(
    model: nn.Module, gradients: Callable[[Sequence[int]], Sequence[Tensor]], one: Sequence[int], other: Sequence[int]
) -> Cutting:
    """Run the passes of a step in two ways from the same state; buffers and random generators are restored afterwards.

    Args:
        model: model that the passes run, in the mode in which they are to be compared.
        gradients: returns the gradients of the step's mean loss, given the sizes of its passes.
        one, other: sizes of the passes, for the same examples in the same order.
    """
    before = State(model, random=True)
    sums, ends = [], []
    try:
        for sizes in (one, other):
            sums.append(gradients(sizes))
            ends.append(State(model, random=True))
            before.restore()
    finally:
        before.restore()
    rounding = max(torch.finfo(gradient.dtype).eps for gradient in sums[0]) ** 0.5
    apart, size = (
        sum(float(entry.double().square().sum()) for entry in map(torch.abs, entries))
        for entries in ([a - b for a, b in zip(*sums, strict=True)], sums[0])
    )
    return Cutting(
        gradients=apart > rounding**2 * size,
        drew=before.drew(ends[0]),
        drew_others=ends[0].drew(ends[1]),
        buffer=ends[0].other_buffer(ends[1], rounding),
    )
