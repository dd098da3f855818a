import math

from hypothesis import given
from hypothesis import strategies as st

from cbs.trial.record import TrialStatus
from sweeps.search.pruning import beyond, settle
from sweeps.spec.cell import Cell
from tests.sweeps.simulation import simulate, small_sweep

CELL = Cell("adamw", 64, 0)


def cell_results(bounds, prune_factor=1.3):
    """All learning rates of a cell, each trial knowing the bound ``bounds[i]`` (or none)."""
    sweep = small_sweep()
    lrs = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)
    return [simulate(sweep.trial_at(CELL, lr), bound, prune_factor) for lr, bound in zip(lrs, bounds, strict=True)]


def settled(results, prune_factor=1.3):
    changed = {result.trial_id: result for result in settle(results, prune_factor)}
    return [changed.get(result.trial_id, result) for result in results]


def test_without_a_bound_or_a_factor_nothing_is_beyond():
    assert not beyond(10**9, None, 1.3)
    assert not beyond(10**9, 1.0, None)
    assert beyond(131, 100.0, 1.3)
    assert not beyond(130, 100.0, 1.3)


@given(st.lists(st.booleans(), min_size=6, max_size=6))
def test_status_is_the_same_whether_the_bound_was_known_in_time_or_not(known):
    unknown = cell_results([None] * 6)
    best = min(r.steps_to_target for r in unknown if r.steps_to_target is not None)
    reference = [(r.status, r.steps_to_target) for r in settled(unknown)]
    assert TrialStatus.PRUNED in {status for status, _ in reference}
    mixed = cell_results([best if flag else None for flag in known])
    assert [(r.status, r.steps_to_target) for r in settled(mixed)] == reference


def test_settling_twice_changes_nothing_and_keeps_the_curve():
    results = cell_results([None] * 6)
    once = settled(results)
    assert settle(once, 1.3) == []
    assert [r.evaluations for r in once] == [r.evaluations for r in results]


def test_the_best_trial_is_never_pruned():
    results = settled(cell_results([None] * 6), 1.0 + 1e-9)
    assert sum(r.status is TrialStatus.REACHED for r in results) >= 1
    assert min(r.steps_to_target or math.inf for r in results) < math.inf


def test_no_factor_settles_nothing():
    assert settle(cell_results([None] * 6), None) == []


def test_failed_trials_are_left_alone():
    results = cell_results([None] * 6)
    broken = results[0].replace(status=TrialStatus.FAILED, steps_to_target=None)
    assert broken.trial_id not in {result.trial_id for result in settle([broken, *results[1:]], 1.3)}
