"""Censoring and the choice of the learning rate."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.estimate.studies import STOPPED, Study, best_values, easier_or_equal, point, studies, within_reach
from analysis.read.results import load
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target
from tests.factories import TARGET, Truth, sweep


def study(steps: list[list[float]], status: list[list[str]] | None = None) -> Study:
    table = np.array(steps)
    reached = np.where(np.isfinite(table), "REACHED", "BUDGET_EXHAUSTED").astype(object)
    return Study(
        batch_size=8,
        lrs=1e-3 * 2.0 ** np.arange(len(table)),
        seeds=np.arange(table.shape[1]),
        steps=table,
        status=reached if status is None else np.array(status, dtype=object),
        bound=np.where(np.isfinite(table), np.nan, 500.0),
        trials=np.arange(table.size).reshape(table.shape),
        resolution=np.zeros(table.shape),
    )


def test_the_winner_is_chosen_over_seeds_not_by_the_luckiest_run() -> None:
    found = point(study([[300, 310, 305], [200, 600, 700], [290, 300, 295]]))
    assert found.best_lr == pytest.approx(4e-3)
    assert found.steps_to_target == pytest.approx((290 * 300 * 295) ** (1 / 3))
    assert found.steps_per_seed == (290, 300, 295)
    assert found.trials == (6, 7, 8)


def test_reaching_on_more_seeds_beats_being_fast() -> None:
    found = point(study([[500, 500], [100, math.nan]]))
    assert (found.best_lr, found.seeds_reached, found.seeds) == (1e-3, 2, 2)


def test_along_the_learning_rate_are_the_rows_with_the_winners_options_and_no_options() -> None:
    whole = dataclasses.replace(
        study([[300, 310], [200, 210], [290, 300], [400, 410]]),
        lrs=np.array([1e-3, 1e-3, 2e-3, 2e-3]),
        tuned=np.array(["momentum=0.9", "momentum=0.95"] * 2, dtype=object),
    )
    along = whole.along_lr
    assert not len(along.tuned)
    assert along.lrs.tolist() == [1e-3, 2e-3]
    assert along.steps.tolist() == [[200, 210], [400, 410]]
    assert along.trials.tolist() == [[2, 3], [6, 7]]
    assert along.resolution.shape == along.steps.shape
    assert point(along).tuned == ""


@pytest.mark.parametrize(("best", "edge"), [(0, True), (1, False), (2, True)])
def test_an_optimum_at_the_edge_of_the_grid_is_flagged(best: int, edge: bool) -> None:
    steps = [[300.0], [300.0], [300.0]]
    steps[best] = [200.0]
    assert point(study(steps)).at_grid_edge is edge


def test_a_diverged_neighbour_makes_an_optimum_interior_and_a_failed_one_does_not() -> None:
    steps = [[300.0], [200.0], [math.nan]]
    assert point(study(steps, [["REACHED"], ["REACHED"], ["DIVERGED"]])).at_grid_edge is False
    assert point(study(steps, [["REACHED"], ["REACHED"], ["FAILED"]])).at_grid_edge is True


def test_a_learning_rate_that_was_never_run_is_no_neighbour() -> None:
    """Nor does it say anything against one that was run with some of the seeds."""
    statuses = [["REACHED", "REACHED"], ["REACHED", ""], ["", ""]]
    found = study([[310.0, 300.0], [200.0, math.nan], [math.nan, math.nan]], statuses)
    assert (found.winner, point(found).at_grid_edge) == (1, True)
    assert (point(found).seeds, point(found).seeds_reached) == (2, 1)
    missed = study([[310.0, 300.0], [200.0, math.nan]], [["REACHED", "REACHED"], ["REACHED", "BUDGET_EXHAUSTED"]])
    assert missed.winner == 0


def test_a_batch_size_without_a_crossing_is_censored_with_its_status() -> None:
    missed = point(study([[math.nan, math.nan]], [["BUDGET_EXHAUSTED", "BUDGET_EXHAUSTED"]]))
    assert (missed.steps_to_target, missed.status, missed.steps_lower_bound) == (None, "BUDGET_EXHAUSTED", 500)
    assert missed.seeds == 2
    assert missed.best_lr is None


def compared(root: Path, target: Target = TARGET) -> list[Study]:
    results = load(root)
    columns = [results.evaluations[name].to_numpy() for name in ("trial", "step", "value")]
    around = [read(*columns, len(results.trials)) for read in (target.crossings, target.apart)]
    return studies(results.groups[0], results.of_group(0), target, *around, columns)


@pytest.mark.parametrize("value", [2.4, 2.6, 3.0])
def test_the_same_whether_a_slow_trial_was_stopped_or_ran_on(tmp_path: Path, value: float) -> None:
    truth = {"adamw": Truth(noise=0.08)}
    for name, stop_slow in (("stopped", True), ("ran on", False)):
        sweep(tmp_path / name, truth, batch_sizes=(4, 32), seeds=2, stop_slow=stop_slow, growth=1.1)
    target = dataclasses.replace(TARGET, value=value)
    for stopped, ran_on in zip(
        compared(tmp_path / "stopped", target), compared(tmp_path / "ran on", target), strict=True
    ):
        assert (stopped.status == TrialStatus.PRUNED).any()
        for field in ("lrs", "seeds", "steps", "status", "bound"):
            np.testing.assert_array_equal(getattr(stopped, field), getattr(ran_on, field))


def test_a_target_harder_than_the_sweeps_own_is_not_guessed(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(4, 32), growth=1.5)
    for entry in compared(tmp_path, dataclasses.replace(TARGET, value=2.39)):
        assert point(entry).status in (STOPPED, "PRUNED")
        assert not point(entry).reached


def test_easier_means_passed_on_the_way() -> None:
    above = Target(metric="accuracy", value=0.9, direction="above")
    assert easier_or_equal(dataclasses.replace(above, value=0.8), above)
    assert not easier_or_equal(dataclasses.replace(above, value=0.95), above)
    assert easier_or_equal(TARGET, TARGET)
    assert not easier_or_equal(above, TARGET)


@pytest.mark.parametrize("direction", ["below", "above"])
def test_best_value_of_every_trial_after_step_0(direction: str) -> None:
    rows = pd.DataFrame(
        {"trial": [0, 0, 0, 2, 2, 3], "step": [0, 1, 2, 0, 4, 1], "value": [0.1, 3.0, 2.0, 9.0, math.nan, -1.0]}
    )
    best = best_values(rows, 5, direction)
    np.testing.assert_array_equal(best, [2.0 if direction == "below" else 3.0, math.nan, math.nan, -1.0, math.nan])


def test_within_reach_is_passed_at_every_batch_size(tmp_path: Path) -> None:
    sweep(tmp_path, batch_sizes=(2, 8), lrs=(1e-3, 2e-3), max_steps=300, growth=1.2)
    results = load(tmp_path)
    best = best_values(results.evaluations, len(results.trials), "below")
    value = within_reach(results.of_group(0), best, "below")
    reached = compared(tmp_path, dataclasses.replace(TARGET, value=value))
    assert all(point(entry).reached for entry in reached)
    harder = compared(tmp_path, dataclasses.replace(TARGET, value=value - 0.02))
    assert not all(point(entry).reached for entry in harder)


def test_crossings_on_disk_are_the_true_steps(tmp_path: Path) -> None:
    truth = Truth(lr_at_1=1e-3, lr_power=0.0)
    sweep(tmp_path, {"adamw": truth}, batch_sizes=(4, 32), lrs=(5e-4, 1e-3, 2e-3))
    found = [point(study).steps_to_target for study in compared(tmp_path)]
    assert found == pytest.approx([175 + 7381 / 4, 175 + 7381 / 32])
