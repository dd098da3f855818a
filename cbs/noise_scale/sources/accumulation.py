"""Source that compares the micro-batches of gradient accumulation, without a copy of the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.boundary import is_sending
from cbs.noise_scale.passes import SPARSE, TWO_BACKWARD, TWO_FORWARD
from cbs.noise_scale.small_batch import Small
from cbs.noise_scale.sources import SOURCES
from cbs.noise_scale.sources.base import Source


@SOURCES.register("accumulation")
class Accumulation(Source):
    """Source in which every backward pass is one group; a training loop that is free to choose should run ``groups`` of
    them.

    A tensor hook on each parameter sees the gradient of a backward pass before it is added to ``.grad``. This works
    with any model, compiled or not, and costs one read of the gradient per micro-batch. One micro-batch per step is not
    enough: a single group leaves nothing to compare.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.micro_batches = self._groups
        self._latest = 0

    def attach(self) -> None:
        super().attach()
        self._forget()

    def collect(self) -> Small | None:
        failure, sizes, self._latest = self._failure, self._examples, self.latest.number
        examples = self.latest.examples
        try:
            if sizes and not self.shared and examples and self._outputs % examples:
                failure = failure or ConfigError(
                    f"the first tensor that the model is called with has {examples} rows, but its output "
                    f"{self._outputs}: pass count= to say how many examples a forward pass has"
                )
            if failure is not None:
                raise failure
            return self._sums.small(len(sizes), sum(sizes.values())) if sizes else None
        finally:
            self._forget()

    def _forget(self) -> None:
        self._failure: ConfigError | None = None
        self._examples: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._sums.forget()

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def take(gradient: Tensor | None) -> None:
            if not self.active or gradient is None or is_sending():
                return
            if gradient.layout is not torch.strided:
                self._failure = ConfigError(SPARSE)
                return
            self.sample.add(index, gradient)
            number, examples = self.latest.number, self.latest.examples
            self._examples[number] = examples
            wrong = self._differentiated(self.latest)
            if wrong is not None:
                self._failure = wrong
                return
            if self._seen.get(index) == number:
                self._failure = ConfigError(TWO_BACKWARD)
            if number > self._latest + 1 and not self.shared:
                self._failure = ConfigError(TWO_FORWARD)
            self._latest = self._seen[index] = number
            self._sums.add(index, examples, gradient.detach()[None])

        return take
