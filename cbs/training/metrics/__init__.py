"""Metrics that exist for every workload, beside the validation metric of its own; found by name."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from cbs.compute import seeding
from cbs.registry import Registry
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


class FixedExamples:
    """The same training examples in every trial, part by part on the device of the model.

    Args:
        inputs: of the metric.
        wanted: number of examples.
        size: largest number of examples in a part where no limit is configured.
        name: of the random numbers with which they are drawn.

    Attributes:
        count: number of examples.
    """

    def __init__(self, inputs: MetricInputs, wanted: int, size: int, name: str) -> None:
        self._to_device, self._size = inputs.to_device, inputs.pass_size or size
        with seeding.seeded(0, name):
            self._batch = inputs.workload.training_stream(seeding.generator(0, name)).next(wanted)
        self.count = max(len(leaf) for leaf in tree_leaves(self._batch) if isinstance(leaf, Tensor))

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, self.count, self._size):
            part = slice(start, start + self._size)
            yield self._to_device(
                tree_map(lambda leaf, part=part: leaf[part] if isinstance(leaf, Tensor) else leaf, self._batch)
            )


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


METRICS: Registry[type[Metric]] = Registry("metric", "cbs.training.metrics", makes=Metric)
__all__ = ["METRICS", "Metric", "MetricInputs", "build_metrics"]


def build_metrics(names: Sequence[str], targets: Sequence[str], inputs: MetricInputs) -> dict[str, Metric]:
    """Build the metrics of a trial by name: those that are listed, and those that its targets name.

    Raises:
        ConfigError: if a name is unknown.
    """
    wanted = {*names, *(target for target in targets if target in METRICS)}
    return {name: METRICS.make(name, inputs) for name in sorted(wanted)}
