"""Metrics that exist for every workload, beside the validation metric of its own, found by name: the training
loss and the norm of the gradient."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from cbs.compute import seeding
from cbs.errors import ConfigError
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
__all__ = ["METRICS", "Metric", "MetricInputs"]


POWER = 10.0  # Exponent p: half of the weight lies in the last 6 % of the examples


# Number of examples whose mean loss is the value before the first step
AT_START = 64


# The current training loss: a line fitted to the losses of the steps over the logarithm of the examples, at its end.
@METRICS.register("training_loss")
class TrainingLoss(Metric):
    """Weighted mean of the training loss with its lag corrected by a linear fit.

    After the first step, a plain mean; before it, the mean loss over :data:`AT_START` examples.
    """

    def __init__(self, inputs: MetricInputs) -> None:
        self._inputs = inputs
        self._seen = 0.0
        self._sums = np.zeros(5)
        """Sums of w, w x, w x^2, w y and w x y; x = ln(e/E) with e the examples behind the weights of a loss y, and E
        all examples seen."""

    def observe(self, examples: np.ndarray, losses: np.ndarray) -> None:
        for now, loss in zip(examples.tolist(), losses.tolist(), strict=True):
            before = self._seen
            if before > 0:
                self._move(math.log(now / before))
            # The loss of a step belongs to the weights before it; before the first step these count as e = 1.
            x = math.log(max(before, 1.0) / now)
            weight = math.exp(POWER * x)
            self._sums += weight * np.array([1.0, x, x * x, loss, x * loss])
            self._seen = float(now)

    def _move(self, shift: float) -> None:
        """Increase the number of examples seen by the factor ``exp(shift)``, which lowers every x by ``shift``."""
        w, wx, wxx, wy, wxy = self._sums
        moved = np.array([w, wx - shift * w, wxx - 2 * shift * wx + shift * shift * w, wy, wxy - shift * wy])
        self._sums = math.exp(-POWER * shift) * moved

    def value(self) -> float:
        w, wx, wxx, wy, wxy = (float(part) for part in self._sums)
        if w <= 0:
            with seeding.seeded(0, "training loss"):
                batch = self._inputs.workload.training_stream(seeding.generator(0, "training loss")).next(AT_START)
                losses = self._inputs.workload.example_losses(self._inputs.model, self._inputs.to_device(batch))
            return float(losses.double().mean())
        spread = w * wxx - wx * wx
        # All losses lie at one place up to rounding, where no line is defined.
        if spread <= 1e-9 * w * wxx:
            return wy / w
        return (wxx * wy - wx * wxy) / spread

    def state(self) -> dict[str, Any]:
        return {"seen": self._seen, "sums": self._sums.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        self._seen, self._sums = float(state["seen"]), np.array(state["sums"], dtype=float)


class OverFixedExamples(Metric):
    """Base class: a number that follows from gradients over a fixed set of training examples.

    Attributes:
        needs: the start of the message where tensors are sharded.
        examples, at_once: number of examples in the set, and in one pass where no limit is configured.
        name: what the set is drawn for.
    """

    unit = ""
    needs: ClassVar[str]
    examples: ClassVar[int]
    at_once: ClassVar[int]
    name: ClassVar[str]

    def __init__(self, inputs: MetricInputs) -> None:
        if not inputs.one_process:
            raise ConfigError(f"{self.needs} whole tensors in one process")
        self.inputs, self.fixed = inputs, FixedExamples(inputs, self.examples, self.at_once, self.name)
        self.parameters = [part for part in inputs.model.parameters() if part.requires_grad]

    def total(self, batch: object) -> Tensor:
        """Return the sum of the losses of a batch."""
        return self.inputs.workload.example_losses(self.inputs.model, batch).sum()


@METRICS.register("gradient_norm")
class GradientNorm(OverFixedExamples):
    """Euclidean norm of the gradient of the mean loss: how far a trial is from a stationary point."""

    needs = "metric 'gradient_norm' needs"
    examples, at_once, name = 512, 128, "gradient norm"

    def value(self) -> float:
        sums: list[Tensor] = [torch.zeros_like(part) for part in self.parameters]
        for part in self.fixed:
            with torch.enable_grad(), self.inputs.beside():
                gradients = torch.autograd.grad(self.total(part), self.parameters, allow_unused=True)
            for total, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    total += gradient.to_dense() if gradient.is_sparse else gradient
        return math.sqrt(sum(float(total.abs().double().square().sum()) for total in sums)) / self.fixed.count
