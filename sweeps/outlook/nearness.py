"""How near a sweep has come to its target, and what the user may have meant if the target is out of reach."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from cbs.errors import ConfigError
from cbs.trial.config import COMMAND
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.target import Target

# Matches names of metrics that may be fractions or percentages and are better when lower
_ERROR = re.compile(r"err|wer\b|cer\b", re.IGNORECASE)

_FEW = 3  # This many equal values do not occur by chance in a run that trains, nor this many failures at the beginning


class Nearness:
    """Tracks the best value of the metric so far.

    Args:
        target: target of the sweep.
        results: trials that have already ended.
        budget: number of examples that every trial sees, whatever it reaches; ``None`` if trials run to the target.

    Attributes:
        best: best value; ``None`` before the first evaluation.
        reached: whether a trial has passed the target.
    """

    def __init__(self, target: Target, results: Iterable[TrialResult] = (), budget: int | None = None) -> None:
        self.target, self._budget = target, budget
        self.best: float | None = None
        self.reached = False
        self._spent: TrialResult | None = None
        for result in results:
            self.add(result)

    def look(self, value: float) -> None:
        """Take in a value of a running trial."""
        if math.isfinite(value) and (
            self.best is None or self.target.distance(value) < self.target.distance(self.best)
        ):
            self.best = value

    def add(self, result: TrialResult) -> None:
        """Take in a trial that has ended."""
        for row in result.evaluations:
            self.look(row.value)
        self.reached = self.reached or result.steps_to_target is not None
        if self._spent is None and result.status is TrialStatus.BUDGET_EXHAUSTED and result.evaluations:
            self._spent = result

    @property
    def words(self) -> str:
        """The target and the best value so far, in a few words."""
        aim = f"target {self.target}"
        if self._budget is not None:
            aim = f"{self.target.metric} after {self._budget:,} examples"
        return f"{aim}, nothing measured yet" if self.best is None else f"{aim}, best so far {self.best:.6g}"

    @property
    def doubt(self) -> str | None:
        """One line to show when the budget of a trial was too small and none has reached the target, or ``None``."""
        if self.reached or self._spent is None or self._budget is not None:
            return None
        spent = self._spent
        values = [row.value for row in spent.evaluations if math.isfinite(row.value)]
        config, ends = spent.config, ""
        if values:
            nearest = min(values, key=self.target.distance)
            ends = f", went from {values[0]:.4g} to {values[-1]:.4g}, at best {nearest:.4g}"
        meant = " or ".join(meant_perhaps(self.target, values))
        return (
            f"no trial has reached {self.target} yet: the first whose budget was too small, after "
            f"{spent.final_step:,} steps at batch size {config.batch_size} and learning rate {config.lr:.3g}{ends}; "
            f"perhaps {meant} is meant"
        )


def check_start(result: TrialResult) -> None:
    """Refuse a target that a trial has passed before its first step, because other trials would too.

    Raises:
        ConfigError: if the trial has.
    """
    if result.steps_to_target == 0:
        other = "below" if result.config.target.direction == "above" else "above"
        raise ConfigError(
            f"{result.config.target} is reached before the first step (trial {result.trial_id}: "
            f"{result.evaluations[0].value:.4g}): choose a harder target, or check its "
            f"direction: perhaps values {other} it are better"
        )


def check_measured(results: Iterable[TrialResult]) -> None:
    """Refuse to go on if the first trials of a program have all failed and logged nothing, because others would too.

    Raises:
        ConfigError: if they have.
    """
    ended = list(results)
    failed = [result for result in ended if result.status is TrialStatus.FAILED and not result.evaluations]
    if len(ended) == len(failed) >= _FEW and failed[0].config.workload.name == COMMAND:
        raise ConfigError(f"the first {len(failed)} trials failed and logged nothing: {failed[0].message}")


def meant_perhaps(target: Target, values: Sequence[float]) -> Iterator[str]:
    """Yield what the user may have meant by a target that a whole budget did not reach, the most likely first.

    Args:
        target: the target as given.
        values: finite values of the trial's metric, in order of steps.
    """
    matched = False
    if len(values) >= _FEW and min(values) == max(values):
        yield "another metric, as this one does not move,"
        return
    between = bool(values) and min(values) >= 0 and max(values) <= 1
    if target.direction == "above" and between and target.value >= 1:
        matched = True
        yield (
            f"--target {target.value / 100:g} (the values are fractions of 1)"
            if 1 < target.value < 100
            else ("a --target below 1 (the values are fractions of 1)")
        )
    percent = bool(values) and 1 < max(values) <= 100
    if target.direction == "below" and percent and 0 < target.value < 1 and _ERROR.search(target.metric):
        matched = True
        yield f"--target {100 * target.value:g} (the values are percent)"
    distances = [target.distance(value) for value in values]
    if len(values) > 1 and distances[-1] > distances[0] and min(distances[1:]) >= distances[0]:
        matched = True
        other = "below" if target.direction == "above" else "above"
        yield f"another metric or {other} its target (it moves away from this one)"
    if not matched:
        share = (distances[0] - min(distances)) / distances[0] if values and distances[0] > 0 else 0.0
        yield f"an easier --target or a longer budget (it came {100 * share:.3g} % of the way)"
