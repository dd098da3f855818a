"""The record of a trial, with units: the one schema of all results."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from cbs.trial.config import TrialConfig
from cbs.trial.target import Target

SCHEMA_VERSION = 1  # Raised when a stored column or key changes its name, unit or meaning

# Fraction of a budget, in examples, by which a trial may miss it and still be at it; see `leeway`
AT_BUDGET = 0.01

# Fraction of a batch by which a trial may miss its budget in any case: one half, as steps are whole, plus rounding
_OF_A_BATCH = 0.55

CLIPPED = "clipped"
"""Column of the steps of trials that clip gradients: 1 where the gradient was clipped, else 0."""


class TrialStatus(StrEnum):
    """How a trial ended. No status means an error in this package itself.

    Example:

        >>> TrialStatus("PRUNED") is TrialStatus.PRUNED
        True
    """

    REACHED = "REACHED"
    """The validation metric passed the target."""
    PRUNED = "PRUNED"
    """Stopped, or counted as stopped, because it is too slow to be the best learning rate of its batch size and
    seed."""
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    """``max_steps`` passed without reaching the target."""
    DIVERGED = "DIVERGED"
    """A loss, weight or gradient was not finite, or the distance to the target exceeded ``divergence_factor`` times
    that at the start."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    """The device ran out of memory; tried again when the sweep is run again."""
    FAILED = "FAILED"
    """The code raised an exception, whose text is in the message; tried again when the sweep is run again."""

    @property
    def final(self) -> bool:
        """Whether running the same trial again would give the same status."""
        return self not in (TrialStatus.OUT_OF_MEMORY, TrialStatus.FAILED)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One evaluation of a trial.

    Attributes:
        step: optimizer updates so far.
        examples: examples seen so far.
        value: the validation metric, in the workload's ``metric_unit``.
        train_loss: mean training loss since the previous evaluation, NaN at step 0.
        lr: learning rate of the latest update, 0 at step 0.
        others: further metrics by name.

    Example:

        >>> row = Measurement(step=100, examples=3200, value=2.31, train_loss=2.4, lr=0.004, others={"accuracy": 0.4})
        >>> row.examples / row.step, row.others["accuracy"]
        (32.0, 0.4)
    """

    step: int
    examples: int
    value: float
    train_loss: float
    lr: float
    others: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WorkloadInfo:
    """Facts about a workload that give a trial's numbers their units.

    Attributes:
        example_unit: what one example is, for example ``"sequence"``.
        tokens_per_example: number of tokens in an example, or ``None`` where that has no meaning.
        metric_unit: unit of the validation metric, for example ``"nats/byte"``.
        parameters: number of trained parameters, or ``None`` where an import does not contain it.
        data_hash: SHA-256 (16 digits) of the data, or ``None`` for synthetic data.
    """

    example_unit: str
    tokens_per_example: int | None
    metric_unit: str
    parameters: int | None
    data_hash: str | None


@dataclass(frozen=True, kw_only=True)
class GeometryColumns:
    """The per-step columns that hold the moments of a geometry, and what is needed to compute a noise scale from them.

    Attributes:
        geometry: name of the geometry.
        symbol: symbol of the noise scale in LaTeX math, without dollar signs.
        exponent: the noise scale is ``(mean noise / mean signal) ** exponent``, in examples: 1 where the moments are
            squared norms, 2 where they are norms.
        signal, noise: names of the columns.
    """

    geometry: str
    symbol: str
    exponent: int
    signal: str
    noise: str


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The record of one trial.

    Attributes:
        config: configuration of the trial.
        status: how the trial ended.
        steps_to_target: first crossing of the target, see :meth:`cbs.trial.target.Target.crossings`; ``None`` where it
            was not reached. With further targets it may be set for other statuses than ``REACHED``.
        evaluations: the full evaluation curve, including step 0.
        steps: per-step columns, each of shape ``[steps]``: ``step``, ``examples``, ``batch_size``, those of a batch
            schedule (see :mod:`cbs.training.batch_sizes`), ``train_loss``, the columns of the probe, :data:`CLIPPED`
            and those of diagnostics.
        geometries: for each geometry, which of these columns hold its moments.
        workload: units and facts of the workload; ``None`` if the trial failed before the model was built.
        message: one line for the user; mostly empty.
        micro_batch_size: number of examples in a forward and backward pass, if memory had room for fewer than
            configured; else ``None``.
        stated: settings that the training program reported, by the names of
            :func:`cbs.training.reporting.report_settings`; empty for trials of this package, whose configuration holds
            them.
        directions: for every metric among :attr:`Measurement.others`, which side of a target is better.
        decided: options that the optimizer chose itself (``auto``), with the values it chose.
        timing: wall-clock facts (seconds, host, device). The only part that differs between two runs of one
            configuration.

    Example:
        >>> from cbs import Choice
        >>> config = TrialConfig(workload=Choice(name="text"), optimizer=Choice(name="adamw"), lr=0.004, batch_size=32,
        ...                      seed=0, target=Target(metric="validation_loss", value=2.0), max_steps=400)
        >>> rows = [Measurement(step=step, examples=32 * step, value=value, train_loss=value, lr=0.004)
        ...         for step, value in ((0, 5.6), (100, 3.0), (400, 1.0))]
        >>> result = TrialResult(config=config, status=TrialStatus.REACHED, steps_to_target=200.0, evaluations=rows,
        ...                      steps={}, workload=None)
        >>> result.examples_to_target, round(result.steps_to(config.target))
        (6400.0, 200)
    """

    config: TrialConfig
    status: TrialStatus
    steps_to_target: float | None
    evaluations: list[Measurement]
    steps: dict[str, np.ndarray]
    workload: WorkloadInfo | None
    geometries: tuple[GeometryColumns, ...] = ()
    message: str = ""
    micro_batch_size: int | None = None
    stated: dict[str, Any] = field(default_factory=dict)
    directions: dict[str, str] = field(default_factory=dict)
    decided: dict[str, str] = field(default_factory=dict)
    timing: dict[str, Any] = field(default_factory=dict)

    @property
    def trial_id(self) -> str:
        return self.config.trial_id

    def values(self, metric: str) -> list[float]:
        """Return a metric at every evaluation; NaN where it was not measured."""
        if metric == self.config.target.metric:
            return [row.value for row in self.evaluations]
        return [row.others.get(metric, math.nan) for row in self.evaluations]

    def steps_to(self, target: Target) -> float | None:
        """Return :attr:`steps_to_target` for one of the trial's targets."""
        if target == self.config.target:
            return self.steps_to_target
        return target.crossing([row.step for row in self.evaluations], self.values(target.metric))

    @property
    def examples_to_target(self) -> float | None:
        """Examples seen at :attr:`steps_to_target`; where the batch size changed, the sum over the steps."""
        if self.steps_to_target is None:
            return None
        if self.config.batch_schedule is None:
            return self.steps_to_target * self.config.batch_size
        return examples_at(self.steps_to_target, self.steps["examples"])

    @property
    def final_step(self) -> int:
        """Number of optimizer updates that were run and evaluated."""
        return self.evaluations[-1].step if self.evaluations else 0

    @property
    def final_examples(self) -> int:
        """Examples seen at :attr:`final_step`, whatever the batch sizes were."""
        return self.evaluations[-1].examples if self.evaluations else 0

    def value_at(self, examples: float) -> float:
        """Return the metric after this many examples, see :func:`read_off`; before the first evaluation the value
        there.

        NaN where there is none: the trial diverged, or its last evaluation misses them by more than :func:`leeway`.
        """
        if self.status is not TrialStatus.BUDGET_EXHAUSTED and self.status is not TrialStatus.REACHED:
            return math.nan
        ended, config = self.final_examples, self.config
        if config.batch_schedule is not None and self.status is TrialStatus.BUDGET_EXHAUSTED:
            # it ends where its next batch would be too large
            ended = max(ended, config.max_examples)
        if ended < examples - leeway(examples, config.batch_size):
            return math.nan
        rows = [row for row in self.evaluations if row.examples > 0]
        value = read_off(np.array([row.examples for row in rows]), np.array([row.value for row in rows]), examples)
        return rows[0].value if value is None else value

    def replace(self, **changes: Any) -> TrialResult:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def leeway(budget: Any, batch_size: Any) -> Any:
    """Return by how many examples the last evaluation of a trial may miss a budget and count as being at it; for
    numbers or arrays."""
    return np.maximum(AT_BUDGET * budget, _OF_A_BATCH * batch_size)


def read_off(along: np.ndarray, values: np.ndarray, position: float, farthest: float = math.inf) -> float | None:
    """Interpolate a curve linearly in the logarithm of its argument; after the last evaluation return the last value.

    >>> read_off(np.array([1.0, 100.0]), np.array([4.0, 2.0]), position=10.0)
    3.0

    Args:
        along: steps, or examples seen, at every evaluation, increasing.
        values: the metric there.
        position: where to read the curve, in the unit of ``along``.
        farthest: largest ratio of two consecutive entries of ``along`` between which the curve is interpolated.

    Returns:
        The value; ``None`` before the first evaluation after step 0, and where the neighbours are too far apart.
    """
    # A place that was computed may lie above its evaluation by rounding.
    after = int(np.searchsorted(along, position * (1.0 - 1e-9)))
    if after == len(along):
        return float(values[-1])
    if abs(along[after] - position) <= 1e-6 * position:
        return float(values[after])
    low, high = (along[after - 1], along[after]) if after else (0.0, along[after])
    if low <= 0 or high > farthest * low:
        return None
    share = math.log(position / low) / math.log(high / low)
    return float(values[after - 1] + share * (values[after] - values[after - 1]))


def examples_at(step: float, examples: np.ndarray) -> float:
    """Return the examples seen at a step that need not be an integer, interpolated linearly within each step.

    Args:
        step: number of steps, from 0 on.
        examples: examples seen after every step, starting with the first, shape ``[steps]``.
    """
    return float(np.interp(step, np.arange(len(examples) + 1), np.concatenate([[0], examples])))


def without_curve(config: TrialConfig, status: TrialStatus, message: str) -> TrialResult:
    """Return the record of a trial without evaluations."""
    return TrialResult(
        config=config, status=status, steps_to_target=None, evaluations=[], steps={}, workload=None, message=message
    )
