"""When a trial is pruned, and the bounds that trials tell each other."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.trial.config import COMMAND, Choice, Schedule, TrialConfig
from cbs.trial.parent import Parent
from cbs.trial.record import Measurement, TrialStatus
from cbs.trial.store import Store
from cbs.trial.target import Target
from sweeps.folder import manifest
from sweeps.folder.manifest import BOUNDS, Bounds, TrialBound
from sweeps.running.trials import Watch
from sweeps.search.forecast import End, ended
from sweeps.search.pruning import NEAR, TRIED, beyond, out_of_reach, settle, stops
from sweeps.search.search import Search
from sweeps.spec.axes import Cell
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


BUDGET = replace(small_sweep().trial_at(CELL, 4e-3), max_steps=1000)


def curve(wanted, last, power=1.0, config=BUDGET):
    """Evaluations up to step ``last`` of a run whose distance to the target falls to 0 in ``wanted`` steps."""
    sign = 1.0 if config.target.direction == "below" else -1.0
    return [
        Measurement(
            step=step,
            examples=step * config.batch_size,
            value=config.target.value + sign * (1 - (step / wanted) ** power),
            train_loss=0.0,
            lr=0.1,
        )
        for step in (0, *(round(last / 1.25**k) for k in range(9, -1, -1)))
    ]


def given_up(config, wanted, power=1.0):
    """First of all steps at which a run is given up; ``None`` for one that is not."""
    steps = range(10, min(config.max_steps, math.ceil(wanted)))
    return next((step for step in steps if out_of_reach(config, curve(wanted, step, power, config))), None)


def test_a_run_far_out_of_reach_ends_at_a_share_of_its_budget():
    step = given_up(BUDGET, 50_000)
    assert step == TRIED * 1000
    status, message = stops(BUDGET, curve(50_000, step), None, 1.3)
    assert status is TrialStatus.BUDGET_EXHAUSTED
    assert message.startswith(f"stopped at step 250: {BUDGET.target} is out of reach of a budget of 1000 steps")
    assert stops(BUDGET, curve(50_000, step), None, None) is None
    assert stops(BUDGET, curve(50_000, step), 100.0, 1.3)[0] is TrialStatus.PRUNED


@given(st.floats(20, 1000), st.floats(0.1, 1.0))
def test_a_run_that_slows_down_and_gets_there_is_never_given_up(wanted, power):
    assert given_up(BUDGET, wanted, power) is None


def test_a_run_that_comes_near_is_not_given_up_whatever_the_last_evaluations_say():
    for share, ends in ((1.01 * NEAR, True), (0.99 * NEAR, False)):
        flat = [replace(row, value=BUDGET.target.value + share) for row in curve(1000, 900)[1:]]
        assert out_of_reach(BUDGET, [curve(1000, 900)[0], *flat]) is ends


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": Schedule(name="cosine", decay_examples=10**6)},
        {"schedule": Schedule(warmup_examples=600 * BUDGET.batch_size)},
        {"stops_at_target": False},
        {"workload": Choice(name=COMMAND)},
        {"parent": Parent(source="x.pt", examples=64, digest="0" * 16)},
    ],
)
def test_what_may_begin_to_fall_at_any_time_is_not_given_up(changes):
    assert out_of_reach(BUDGET, curve(1e6, 999))
    assert not out_of_reach(replace(BUDGET, **changes), curve(1e6, 999))


def test_it_is_asked_whether_all_targets_are_out_of_reach():
    two = replace(BUDGET, further_targets=(Target(metric="other_accuracy", value=1.0, direction="above"),))
    rows = curve(1e6, 999)
    for wanted, ends in ((1e6, True), (1000.0, False)):
        others = [replace(row, others={"other_accuracy": row.step / wanted}) for row in rows]
        assert out_of_reach(two, others) is ends


def test_the_best_trial_is_never_pruned():
    results = settled(cell_results([None] * 6), 1.0 + 1e-9)
    assert sum(r.status is TrialStatus.REACHED for r in results) >= 1
    assert min(r.steps_to_target or math.inf for r in results) < math.inf


@pytest.fixture(autouse=True)
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "LOOK_SECONDS", 0.0)


class UnderWay:
    """A sweep with two cells, of two batch sizes or of two seeds, four trials of each run."""

    def __init__(self, folder: Path, batch_sizes: tuple[int, ...] = (4, 8), seeds: tuple[int, ...] = (0,)) -> None:
        self.folder, self.told = folder, Bounds(Store(folder))
        self.search = Search(
            small_sweep(
                optimizers=(Choice(name="adamw"),), batch_sizes=batch_sizes, lrs=(1e-3, 2e-3, 4e-3, 8e-3), seeds=seeds
            )
        )
        by_cell: dict[Cell, list[TrialConfig]] = {}
        for config in iter(self.search.next, None):
            by_cell.setdefault(Cell.of(config), []).append(config)
        self.cell, self.others = by_cell.values()

    def ends(self, config: TrialConfig, steps: float | None) -> None:
        result = ended(config, End(steps or 200.0), 100.0 if steps is None else steps)
        self.search.add(result)
        self.told.finished(result, self.search)

    def bound(self, config: TrialConfig, steps: float | None = None) -> TrialBound:
        return TrialBound(str(self.folder), config.trial_id, steps)


@pytest.mark.parametrize("axes", [{"batch_sizes": (4, 8)}, {"batch_sizes": (4,), "seeds": (0, 1)}], ids=str)
def test_the_running_trials_of_a_cell_learn_of_its_best_and_no_others(
    tmp_path: Path, axes: dict[str, tuple[int, ...]]
) -> None:
    sweep = UnderWay(tmp_path, **axes)
    first, second, third, _ = sweep.cell
    one, other = sweep.bound(third), sweep.bound(sweep.others[0], 70.0)
    assert (one.steps, other.steps) == (None, 70.0)
    sweep.ends(first, 40.0)
    assert (one.steps, other.steps) == (40.0, 70.0)
    sweep.ends(second, 50.0)  # no better
    assert (one.steps, other.steps) == (40.0, 70.0)
    sweep.ends(sweep.others[1], 60.0)
    assert (one.steps, other.steps) == (40.0, 60.0)
    assert sweep.bound(second).steps is None  # it is over
    sweep.told.ended(sweep.search)
    assert not (tmp_path / BOUNDS).exists()
    assert (one.steps, other.steps) == (40.0, 60.0)


def test_a_trial_that_misses_the_target_tells_nothing(tmp_path: Path) -> None:
    sweep = UnderWay(tmp_path)
    sweep.ends(sweep.cell[0], None)
    assert not (tmp_path / BOUNDS).exists()


@pytest.mark.parametrize("text", ["", "[1]", '{"one": "x"}', '{"one"', "7", "[" * 100_000], ids=len)
def test_a_damaged_file_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / BOUNDS).write_text(text)
    assert TrialBound(str(tmp_path), "one", 70.0).steps == 70.0


def test_it_does_not_look_at_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "LOOK_SECONDS", 3600.0)
    sweep = UnderWay(tmp_path)
    one = sweep.bound(sweep.cell[1])
    assert one.steps is None
    sweep.ends(sweep.cell[0], 40.0)
    assert (tmp_path / BOUNDS).exists()
    assert one.steps is None


def test_settling_twice_changes_nothing_and_keeps_the_curve():
    results = cell_results([None] * 6)
    once = settled(results)
    assert settle(once, 1.3) == []
    assert [r.evaluations for r in once] == [r.evaluations for r in results]


def test_a_run_that_misses_by_little_goes_on_for_longer():
    assert given_up(BUDGET, 1500) > 400


def test_a_running_trial_asks_for_both(tmp_path):
    for best, status in ((100.0, TrialStatus.PRUNED), (None, TrialStatus.BUDGET_EXHAUSTED)):
        watch = Watch(BUDGET, None, TrialBound(str(tmp_path), "one", best), 1.3)
        assert watch.monitor(curve(50_000, 250)[:-3]) is None or best
        assert watch.monitor(curve(50_000, 250))[0] is status


def test_no_factor_settles_nothing():
    assert settle(cell_results([None] * 6), None) == []


def test_failed_trials_are_left_alone():
    results = cell_results([None] * 6)
    broken = results[0].replace(status=TrialStatus.FAILED, steps_to_target=None)
    assert broken.trial_id not in {result.trial_id for result in settle([broken, *results[1:]], 1.3)}


def test_what_a_killed_sweep_has_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / BOUNDS).write_text('{"one": 1.0}')
    Bounds(Store(tmp_path))
    assert not (tmp_path / BOUNDS).exists()
