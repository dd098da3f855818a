"""The target of a trial, and the only definition of what "reached" means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np

from cbs.errors import ConfigError

Direction = Literal["below", "above"]

# A crossing is read from the evaluations between its first step divided by this and its first step: wide enough for
# about four of them, narrow enough for a line.
NEARBY = 1.2


@dataclass(frozen=True, kw_only=True)
class Target:
    """A validation metric and the value it has to pass.

    A value equal to the target has not reached it: the comparison is strict, as in Shallue et al. (2019), "Measuring
    the Effects of Data Parallelism on Neural Network Training", section 4.

    >>> target = Target(metric="validation_loss", value=2.0)
    >>> round(target.crossing([1, 10, 100], [4.0, 3.0, 1.0]), 1)  # between the evaluations, on a line over log(step)
    31.6

    Attributes:
        metric: name of the workload's validation metric.
        value: the threshold, in the unit of the metric.
        direction: ``"below"`` for a loss, ``"above"`` for an accuracy.
    """

    metric: str
    value: float
    direction: Direction = "below"

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, Real) or not math.isfinite(self.value):
            raise ConfigError(f"target value must be a finite number, got {self.value!r}")
        object.__setattr__(self, "value", float(self.value))
        if self.direction not in ("below", "above"):
            raise ConfigError(f"target direction must be 'below' or 'above', got {self.direction!r}")

    @property
    def sign(self) -> float:
        """1 if less is better, otherwise -1: the metric times this is a loss."""
        return 1.0 if self.direction == "below" else -1.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"metric": self.metric, "value": self.value, "direction": self.direction}

    def reached(self, value: float) -> bool:
        """Return whether ``value`` is strictly better than the target; a value that is not finite never is."""
        if not math.isfinite(value):
            return False
        return value < self.value if self.direction == "below" else value > self.value

    def distance(self, value: float) -> float:
        """Return how far ``value`` is from the target, in the metric's unit; negative once reached."""
        return value - self.value if self.direction == "below" else self.value - value

    def crossing(self, steps: Sequence[float], values: Sequence[float]) -> float | None:
        """Return the crossing of one evaluation curve, see :meth:`crossings`; ``None`` if no evaluation reaches the
        target.
        """
        crossings = self.crossings(
            np.zeros(len(steps), dtype=int), np.asarray(steps), np.asarray(values, dtype=float), 1
        )
        return None if np.isnan(crossings[0]) else float(crossings[0])

    def crossings(self, trial: np.ndarray, steps: np.ndarray, values: np.ndarray, trials: int) -> np.ndarray:
        r"""Return the steps at which evaluation curves reach the target.

        The first evaluation that reaches the target, at step s, says that it is reached; when, says the least-squares
        line through the metric over ``log(step)`` at the evaluations from ``s / NEARBY`` to s, which averages their
        noise. Where none but the one before s can be used, the line is the interpolation between the two, and so it is
        where the least-squares line does not approach the target. The result lies between the first of these steps and
        s. Where the evaluation before s is step 0 or has a value that is not finite, and where the first evaluation
        already reaches the target, it is s itself. Later evaluations change nothing.

        Args:
            trial: number of the curve of every evaluation, 0 to ``trials - 1``, shape ``[N]``; increasing.
            steps: step of every evaluation, shape ``[N]``; increasing within a trial.
            values: metric of every evaluation, shape ``[N]``.
            trials: number of curves.

        Returns:
            Steps (not integers in general), shape ``[trials]``; NaN where no evaluation reaches the target.
        """
        owner, after, before = self._around(trial, values)
        crossings_of_trials = np.full(trials, np.nan)
        crossings_of_trials[owner] = steps[after]
        inside = (after > 0) & (trial[before] == owner) & (steps[before] > 0) & np.isfinite(values[before])
        owner, a, b = owner[inside], before[inside], after[inside]
        if len(owner):
            crossings_of_trials[owner] = self._on_lines(trial, steps.astype(float), values, owner, a, b)
        return crossings_of_trials

    def _on_lines(
        self, trial: np.ndarray, steps: np.ndarray, values: np.ndarray, owner: np.ndarray, a: np.ndarray, b: np.ndarray
    ) -> np.ndarray:
        """Return where lines meet the target for curves ``owner``, which miss it at evaluations ``a`` and reach it at
        ``b = a + 1``; all of shape ``[K]``."""
        row = np.searchsorted(owner, trial)
        row[row == len(owner)] = 0
        index = np.arange(len(trial))
        near = (trial == owner[row]) & (steps >= np.minimum(steps[a], steps[b] / NEARBY)[row]) & (index <= b[row])
        near &= np.isfinite(values) & (steps > 0)
        row = row[near]
        x, y = np.log(steps[near] / steps[b][row]), values[near] - self.value

        def mean(of: np.ndarray) -> np.ndarray:
            return np.asarray(np.bincount(row, of) / np.bincount(row))

        x_mean, y_mean = mean(x), mean(y)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            slope = mean((x - x_mean[row]) * y) / mean((x - x_mean[row]) ** 2)
            met = x_mean - y_mean / slope
            share = (values[a] - self.value) / (values[a] - values[b])
            between = (1.0 - share) * np.log(steps[a] / steps[b])
            approaches = np.isfinite(met) & (slope < 0 if self.direction == "below" else slope > 0)
        first = np.full(len(owner), np.inf)
        np.minimum.at(first, row, x)
        return np.asarray(steps[b] * np.exp(np.where(approaches, np.clip(met, first, 0.0), between)))

    def apart(self, trial: np.ndarray, steps: np.ndarray, values: np.ndarray, trials: int) -> np.ndarray:
        """Return the ratio of the steps of the two evaluations between which curves reach the target; see
        :meth:`crossings`.

        Returns:
            Shape ``[trials]``; infinite where no evaluation after step 0 precedes the one that reaches the target, NaN
            where none reaches it.
        """
        owner, after, before = self._around(trial, values)
        inside = (after > 0) & (trial[before] == owner) & (steps[before] > 0)
        steps_apart = np.full(trials, np.nan)
        steps_apart[owner] = np.where(inside, steps[after] / np.where(inside, steps[before], 1), np.inf)
        return steps_apart

    def _around(self, trial: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the curves that reach the target, the first evaluations that do, and the evaluations before these.

        The latter may belong to another curve.
        """
        better = values < self.value if self.direction == "below" else values > self.value
        hits = np.flatnonzero(better & np.isfinite(values))
        owner, first = np.unique(trial[hits], return_index=True)
        after = hits[first]
        return owner, after, np.maximum(after - 1, 0)

    def __str__(self) -> str:
        return f"{self.metric} {'<' if self.direction == 'below' else '>'} {self.value:g}"
