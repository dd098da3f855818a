"""The rule by which a trial ends, for trials that train here and for those that another program trains."""

import math
from collections.abc import Callable, Sequence

from cbs.trial.config import TrialConfig
from cbs.trial.record import Measurement, TrialStatus
from cbs.trial.target import Target

Ending = tuple[TrialStatus, str]  # The status with which a trial ended, and a one-line explanation

Monitor = Callable[[Sequence[Measurement]], Ending | None]
"""Function called with the evaluations so far after every one that did not reach the target; returns how the trial is
to end there, or ``None``."""


def value_of(config: TrialConfig, target: Target, row: Measurement) -> float:
    """Return the value of a target's metric at an evaluation; NaN where it was not measured."""
    return row.value if target == config.target else row.others.get(target.metric, math.nan)


def reached(config: TrialConfig, rows: Sequence[Measurement]) -> bool:
    """Return whether every target that ends the trial was reached at one of these evaluations."""
    return config.stops_at_target and all(
        any(target.reached(value_of(config, target, row)) for row in rows) for target in config.targets
    )


def ended_at_start(config: TrialConfig, start: Measurement) -> Ending | None:
    """Return the ending of a trial that ends at its first evaluation; ``None`` where it goes on."""
    if not math.isfinite(start.value):
        where = "before the first step" if start.step == 0 else f"at its first evaluation, step {start.step}"
        return TrialStatus.DIVERGED, f"the metric is not finite {where}"
    if reached(config, [start]):
        if start.step == 0:
            return TrialStatus.REACHED, "the target is reached before the first step; choose a harder target"
        return (
            TrialStatus.REACHED,
            f"the target is reached at the first evaluation, step {start.step}: the steps are an upper bound; evaluate "
            "earlier",
        )
    return None


def ended(config: TrialConfig, rows: Sequence[Measurement], monitor: Monitor | None) -> Ending | None:
    """Return the ending of a trial at an evaluation after its first; ``None`` where it goes on.

    Args:
        config: configuration of the trial.
        rows: its evaluations so far. The distance to the target at the start is known only from a first evaluation
            before the first step. Without it, where that evaluation passed the target, or where the trial starts from a
            checkpoint, which may be near the target, a trial counts as diverged only if the metric is not finite. With
            a single target, the first and the last evaluation are enough.
        monitor: function that may end the trial.
    """
    target, start, latest = config.target, rows[0], rows[-1]
    if reached(config, rows if config.further_targets else rows[-1:]):
        return TrialStatus.REACHED, ""
    if monitor is not None and (ending := monitor(rows)) is not None:
        return ending
    away = target.distance(start.value)
    limit = config.divergence_factor * away if start.step == 0 and away > 0 and config.parent is None else math.inf
    if not (math.isfinite(latest.value) and target.distance(latest.value) <= limit):
        since = f", {start.value:.4g} at the start" if start.step == 0 else ""
        return TrialStatus.DIVERGED, f"{target.metric} is {latest.value:.4g} at step {latest.step}{since}"
    return None


def exhausted(config: TrialConfig, latest: Measurement) -> Ending:
    """Return the ending of a trial whose budget has no room for another step."""
    if not config.stops_at_target:
        return TrialStatus.BUDGET_EXHAUSTED, f"trained to its budget; last {config.target.metric} {latest.value:.4g}"
    return (
        TrialStatus.BUDGET_EXHAUSTED,
        f"{' and '.join(map(str, config.targets))} not reached in {latest.step} steps; last value {latest.value:.4g}",
    )
