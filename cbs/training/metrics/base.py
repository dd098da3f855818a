"""Base class of the metrics that exist for every workload."""

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
    """What a metric may use.

    Attributes:
        workload: workload of the trial.
        model: the model that the workload calls; during :meth:`Metric.value` it has the weights that are validated.
        to_device: moves a batch to the device of the model.
        pass_size: largest number of examples in a forward and backward pass; ``None`` for no limit.
        beside: context manager to enter around passes with gradients, which are not part of training.
        one_process: whether the trial runs in one process, with unsharded tensors.
    """

    workload: Workload
    model: nn.Module
    to_device: Callable[[Batch], Batch]
    pass_size: int | None = None
    beside: Callable[[], AbstractContextManager[None]] = nullcontext
    one_process: bool = True


class Metric(ABC):
    """A number that describes a trial, measured at every evaluation.

    Measuring changes neither weights nor the random numbers that training draws.

    Attributes:
        direction: which side of a target is better.
        unit: unit of the values; ``None`` for that of the workload's own metric.
    """

    direction: ClassVar[Direction] = "below"
    unit: ClassVar[str | None] = None

    @abstractmethod
    def __init__(self, inputs: MetricInputs) -> None:
        """Prepare the metric; called once per trial, before its first step."""

    def observe(self, examples: np.ndarray, losses: np.ndarray) -> None:
        """Receive the steps since the previous evaluation; a trial calls this before :meth:`value`.

        Args:
            examples: number of examples seen after each step, shape ``[steps]``.
            losses: mean training loss of each step, at the weights before it, shape ``[steps]``.
        """
        return

    @abstractmethod
    def value(self) -> float:
        """Return the current value; NaN where there is none yet.

        A trial calls this at every evaluation, with the model in evaluation mode, gradients disabled, and the same
        random numbers every time.
        """

    def state(self) -> dict[str, Any]:
        """Return what a later process needs to continue, as plain values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`state`."""
        return
