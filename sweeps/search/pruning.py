"""Stop trials that can no longer win, or reach the target, without changing which trial wins.

The rule: a trial is PRUNED if it was evaluated beyond ``prune_factor`` times the best steps to target of its cell (same
optimizer, batch size and seed) and had not reached the target by that evaluation. The best trial of a cell is never
pruned, so no minimum changes. Whether the bound was known in time to stop a trial depends on timing; the status must
not, so :func:`settle` applies the same rule to trials that ended before the bound was known.

Before any trial of a cell has reached the target there is no bound, and a learning rate that is far too low would spend
the whole budget. It ends once it is :func:`out_of_reach`, by its own evaluations alone.
"""

from collections.abc import Sequence

from cbs.trial.config import COMMAND, TrialConfig
from cbs.trial.ending import Ending, value_of
from cbs.trial.record import Measurement, TrialResult, TrialStatus

# Share of the budget before which no trial is given up, chosen by hand: pruned runs then cost a quarter
TRIED = 0.25

FASTER = 2.0
"""How many times as fast as over the second half of its steps a trial may come nearer and still be given up. At a
constant learning rate progress slows down; twice allows for a plateau before the metric begins to move. No run of 48 on
text and images that reached its target was given up, nor was one at 1."""

# Share of the distance at the start within which no trial is given up: the last evaluations before the target are
# close together, and their noise is as large as what they gain.
NEAR = 0.15


def beyond(step: int, best_steps: float | None, prune_factor: float | None) -> bool:
    """Return whether an evaluation at ``step`` lies beyond the pruning bound that ``best_steps`` sets."""
    return best_steps is not None and prune_factor is not None and step > prune_factor * best_steps


def stops(
    config: TrialConfig, rows: Sequence[Measurement], best_steps: float | None, prune_factor: float | None
) -> Ending | None:
    """Return how a trial ends before it has reached its target, given its evaluations so far, the fewest steps to
    target of its cell, if known, and the pruning factor of the sweep; ``None`` where it goes on."""
    latest = rows[-1]
    if beyond(latest.step, best_steps, prune_factor):
        return TrialStatus.PRUNED, f"stopped at step {latest.step}: another learning rate needs fewer steps"
    if prune_factor is not None and out_of_reach(config, rows):
        said = f"{config.target} is out of reach of a budget of {config.max_steps} steps"
        return TrialStatus.BUDGET_EXHAUSTED, f"stopped at step {latest.step}: {said}; last value {latest.value:.4g}"
    return None


def out_of_reach(config: TrialConfig, rows: Sequence[Measurement]) -> bool:
    """Return whether a trial would miss all of its targets even if it came nearer :data:`FASTER` times as fast as over
    the second half of its steps so far.

    Always false before :data:`TRIED` of the budget and the warmup, near a target, and where the metric may begin to
    fall at any time: under a decaying learning rate or a growing batch, after a checkpoint, in a program of one's own.
    """
    alike = config.schedule.name == "constant" and config.batch_schedule is None and config.parent is None
    start, latest = rows[0], rows[-1]
    if not alike or config.workload.name == COMMAND or not config.stops_at_target or start.step:
        return False
    before = next(row for row in reversed(rows) if row.step <= latest.step / 2)
    if latest.step < TRIED * config.max_steps or before.examples < config.schedule.warmup_examples:
        return False
    for target in config.targets:
        away, half, now = (target.distance(value_of(config, target, row)) for row in (start, before, latest))
        gain = FASTER * (half - now) / (latest.step - before.step) * (config.max_steps - latest.step)
        if not (away > 0 and now > max(NEAR * away, gain)):
            return False
    return True


def settle(results: Sequence[TrialResult], prune_factor: float | None) -> list[TrialResult]:
    """Return the trials of one cell whose status the rule changes, with their new status.

    Their evaluations are kept in full. Trials that failed or ran out of memory are left alone.

    Args:
        results: all trials of one cell.
        prune_factor: pruning factor of the sweep; ``None`` changes nothing.
    """
    reached = [result.steps_to_target for result in results if result.steps_to_target is not None]
    if prune_factor is None or not reached:
        return []
    best = min(reached)
    changed = []
    for result in results:
        if result.status is TrialStatus.PRUNED or not result.status.final:
            continue
        late = next((row for row in result.evaluations if beyond(row.step, best, prune_factor)), None)
        if late is None or result.config.target.reached(late.value):
            continue
        message = f"slower than {prune_factor:g} x {best:.4g} steps, the best of its batch size and seed"
        changed.append(result.replace(status=TrialStatus.PRUNED, steps_to_target=None, message=message))
    return changed
