"""What a noise-scale estimator sees of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Probe(Protocol):
    """Watches the gradients of every step of a trial and turns them into columns of numbers.

    The training loop calls :meth:`micro_batch` once for each micro-batch of a step with the gradients of its mean loss,
    then :meth:`step` once with the gradients of the whole batch's mean loss, before any clipping. Values stay on the
    device as zero-dimensional tensors until the next evaluation.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers returned by :meth:`step`."""

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a step must have; a batch that would be processed at once is split."""

    def micro_batch(self, gradients: Sequence[Tensor], examples: int) -> None:
        """Take in the gradients of one micro-batch of ``examples`` examples."""

    def step(self, gradients: Sequence[Tensor], examples: int) -> tuple[Tensor, ...]:
        """Take in the gradients of the whole batch; return one value per column and forget the step."""
