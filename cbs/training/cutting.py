"""Whether a training step comes out the same however its examples are cut into passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbs.compute.state import State


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """The passes of one step in two ways to cut its examples.

    Attributes:
        gradients: whether the gradients of the step differ by more than rounding.
        drew: whether the passes drew random numbers.
        drew_others: whether they drew other ones, or more.
        buffer: name of one that they leave with other values; empty if there is none.
    """

    gradients: bool
    drew: bool
    drew_others: bool
    buffer: str

    @property
    def difference(self) -> str:
        """How the step depends on the way it is cut, in words; empty if it does not."""
        if self.buffer:
            return f"buffer {self.buffer!r} has other values after smaller passes"
        if self.drew_others or (self.drew and self.gradients):
            return "smaller passes draw other random numbers"
        return "the gradient of a step differs in smaller passes" if self.gradients else ""


def compare(
    model: nn.Module, gradients: Callable[[Sequence[int]], Sequence[Tensor]], one: Sequence[int], other: Sequence[int]
) -> Cutting:
    """Run the passes of a step in two ways, from one state: buffers and random numbers are as before afterwards.

    Args:
        model: that the passes run, in the mode in which they are to be compared.
        gradients: of the mean loss of the step, from the sizes of its passes.
        one, other: sizes of the passes, the same examples in the same order.
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
