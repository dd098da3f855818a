"""What a metric of a trial is that every workload has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import nn

from cbs.trial.target import Direction
from cbs.workloads import Workload
from cbs.workloads.base import Batch


@dataclass(frozen=True)
class MetricInputs:
    """What a metric may look at.

    Attributes:
        workload: of the trial.
        model: as the workload calls it; while :meth:`Metric.value` runs it has the weights that are validated.
        to_device: puts a batch where the model is.
        pass_size: examples of a forward and backward pass; ``None`` where memory holds any number.
        beside: is entered around passes with gradients, which are no part of the training.
        one_process: whether the trial runs in one process, with whole tensors.
    """

    workload: Workload
    model: nn.Module
    to_device: Callable[[Batch], Batch]
    pass_size: int | None = None
    beside: Callable[[], AbstractContextManager[None]] = nullcontext
    one_process: bool = True


class Metric(ABC):
    """A number about a trial, measured at every evaluation. It changes neither weights nor the numbers that training
    draws.

    Attributes:
        direction: which side is better.
        unit: of the values; ``None`` for that of the workload's own metric.
    """

    direction: ClassVar[Direction] = "below"
    unit: ClassVar[str | None] = None

    @abstractmethod
    def __init__(self, inputs: MetricInputs) -> None:
        """Get ready; called once per trial, before its first step."""

    def observe(self, examples: np.ndarray, losses: np.ndarray) -> None:
        """Take in the steps since the evaluation before; a trial calls it before :meth:`value`.

        Args:
            examples: seen after each, shape ``[steps]``.
            losses: mean training loss of each, at the weights before it, shape ``[steps]``.
        """
        return

    @abstractmethod
    def value(self) -> float:
        """The metric now; NaN where there is none yet. A trial calls it at every evaluation, with the model in
        evaluation mode, gradients off and random numbers that are the same every time."""

    def state(self) -> dict[str, Any]:
        """What a later process needs to go on, as plain values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go back to :meth:`state`."""
        return
