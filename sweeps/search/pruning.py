"""Stop trials that can no longer win, without changing which trial wins.

The rule: a trial is PRUNED if it was evaluated beyond ``prune_factor`` times the best steps to target of its cell (same
optimizer, batch size and seed) and had not reached the target by that evaluation. The best trial of a cell is never
pruned, so no minimum changes. Whether the bound was known in time to stop a trial depends on timing; the status must
not, so :func:`settle` applies the same rule to trials that ended before the bound was known.
"""

from __future__ import annotations

from collections.abc import Sequence

from cbs.trial.record import TrialResult, TrialStatus


def beyond(step: int, best_steps: float | None, prune_factor: float | None) -> bool:
    """Return whether an evaluation at ``step`` lies beyond the pruning bound that ``best_steps`` sets."""
    return best_steps is not None and prune_factor is not None and step > prune_factor * best_steps


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
