"""Source that compares the micro-batches of gradient accumulation, without a copy of the gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.passes import TWO_BACKWARD, TWO_FORWARD
from cbs.noise_scale.small_batch import Small
from cbs.noise_scale.sources import SOURCES
from cbs.noise_scale.sources.base import Source


@SOURCES.register("accumulation")
class Accumulation(Source):
    """Source in which every backward pass is one group.

    A tensor hook on each parameter sees the gradient of a backward pass before it is added to ``.grad``. This works
    with any model, compiled or not, and costs one read of the gradient per micro-batch. One micro-batch per step is not
    enough: a single group leaves nothing to compare.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.micro_batches = self._groups

    def _measured(self) -> Small | None:
        examples = self.latest.units.numel()
        if self._examples and not self.shared and examples and self._outputs % examples:
            raise ConfigError(
                f"the first tensor that the model is called with has {examples} rows, but its output {self._outputs}: "
                "pass count= to say how many examples a forward pass has"
            )
        return self._sums.small(len(self._examples), sum(self._examples.values())) if self._examples else None

    def _forget(self) -> None:
        super()._forget()
        self._examples: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._differentiated = self.latest.number

    def _take(self, index: int, gradient: Tensor) -> None:
        number, examples = self.latest.number, self.latest.units.numel()
        if not self._add_pass(self.latest):
            return
        if self._seen.get(index) == number:
            self._fail(TWO_BACKWARD)
        if number > self._differentiated + 1 and not self.shared:
            self._fail(TWO_FORWARD)
        self._differentiated = self._seen[index] = number
        self._examples[number] = examples
        self._sums.add(index, examples, gradient.detach()[None])
