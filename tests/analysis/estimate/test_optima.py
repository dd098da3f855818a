"""The optimum between the grid points, what the grid and the seeds leave open of it, and edges."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from analysis.estimate.fitting.bootstrap import leftover
from analysis.estimate.optima import Optimum, gain, optimum
from analysis.estimate.studies import Study

LRS = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
STEP = math.log(2)


def study(steps: Sequence[Sequence[float]], *, lrs: Sequence[float] = LRS, **changes: np.ndarray) -> Study:
    """Rows are learning rates. NaN is a trial that was pruned at 130 steps, 0 one that was never run."""
    table = np.asarray(steps, dtype=float)
    status = np.where(table == 0, "", np.where(np.isnan(table), "PRUNED", "REACHED")).astype(object)
    bound = np.where(np.isnan(table), 130.0, np.nan)
    columns = {"steps": np.where(table > 0, table, np.nan), "status": status, "bound": bound} | changes
    columns |= {"trials": np.full(table.shape, -1), "resolution": np.zeros(table.shape)}
    return Study(8, np.asarray(lrs), np.arange(table.shape[1]), **columns)


def parabola(best: float, lrs: Sequence[float] = LRS, curvature: float = 0.4) -> list[list[float]]:
    return [[100 * math.exp(0.5 * curvature * math.log(lr / best) ** 2)] for lr in lrs]


def found(of: Study) -> Optimum:
    result = optimum(of, np.random.default_rng(0))
    assert result is not None
    return result


@pytest.mark.parametrize("lrs", [LRS, (1e-3, 1.7e-3, 4.1e-3, 6e-3, 16e-3)])
@pytest.mark.parametrize("best", [2.3e-3, 4e-3, 5.1e-3])
def test_the_vertex_of_a_parabola_is_found_between_grid_points(best: float, lrs: Sequence[float]) -> None:
    result = found(study(parabola(best, lrs), lrs=lrs))
    assert result.lr == pytest.approx(best, rel=1e-9)
    assert result.edge == 0
    assert 0 < result.grid_variance < (0.2 * result.step) ** 2


def test_a_pruned_neighbour_leaves_the_ends_between_which_the_vertex_lies() -> None:
    # right neighbour at least ln 1.3 above the winner, left one ln 1.1 above it
    result = found(study([[math.nan], [110], [100], [math.nan], [math.nan]]))
    low, high = -STEP / 2, STEP * (math.log(1.1) - math.log(1.3)) / (2 * (math.log(1.1) + math.log(1.3)))
    assert result.log_lr == pytest.approx(math.log(4e-3) + (low + high) / 2)
    shape = (STEP / (6 * math.sqrt(3))) ** 2
    assert result.grid_variance == pytest.approx((high - low) ** 2 / 12 + shape)
    both = found(study([[math.nan], [math.nan], [100], [math.nan], [math.nan]]))
    assert both.log_lr == pytest.approx(math.log(4e-3))
    assert both.grid_variance == pytest.approx(STEP**2 / 12 + shape)


def test_one_pruned_seed_makes_a_neighbour_a_bound_and_one_never_run_does_not() -> None:
    whole = found(study([[110, 110], [100, 100], [120, 120]], lrs=LRS[:3]))
    pruned = found(study([[110, 110], [100, 100], [120, math.nan]], lrs=LRS[:3]))
    never = found(study([[110, 110], [100, 100], [120, 0]], lrs=LRS[:3]))
    assert never.log_lr == pytest.approx(whole.log_lr)
    assert never.grid_variance == pytest.approx(whole.grid_variance)
    assert pruned.grid_variance > 1.5 * whole.grid_variance


def test_neighbours_of_equal_steps_leave_the_whole_step_open_only_where_all_are_equal() -> None:
    assert found(study([[100], [100], [110]], lrs=LRS[:3])).edge == -1  # ties go to the lower one
    flat = found(study([[101], [100], [101]], lrs=LRS[:3]))
    assert flat.log_lr == pytest.approx(math.log(2e-3))


@pytest.mark.parametrize(("best", "edge"), [(2e-4, -1), (9e-2, 1)])
def test_at_an_edge_only_a_bound_is_known(best: float, edge: int) -> None:
    result = found(study(parabola(best)))
    assert result.edge == edge
    low, high = result.interval(0.1)
    if edge > 0:
        assert result.lr == pytest.approx(LRS[-1])
        assert high is None
        assert low == pytest.approx(LRS[-1] / math.sqrt(2))
    else:
        assert low is None
        assert high == pytest.approx(LRS[0] * math.sqrt(2))


def test_learning_rates_that_failed_or_never_ran_are_no_neighbours() -> None:
    status = np.array([["FAILED"], ["REACHED"], ["REACHED"], ["OUT_OF_MEMORY"], [""]], dtype=object)
    steps = np.array([[np.nan], [100.0], [110.0], [np.nan], [np.nan]])
    assert found(study(steps, status=status, bound=np.full((5, 1), np.nan))).edge == -1
    status[0] = "DIVERGED"
    assert found(study(steps, status=status, bound=np.full((5, 1), np.nan))).edge == 0


def test_seeds_that_disagree_give_the_variance_of_one_seed() -> None:
    assert found(study(parabola(4e-3))).seed_variance == 0
    rng = np.random.default_rng(1)
    best = np.exp(math.log(4e-3) + 0.2 * rng.standard_normal(40))
    many = found(study(np.array([[row[0] for row in parabola(each)] for each in best]).T))
    assert math.sqrt(many.seed_variance) == pytest.approx(0.2, rel=0.35)
    same = found(study(np.repeat(np.array(parabola(4e-3)), 3, axis=1)))
    assert same.seed_variance == pytest.approx(0, abs=1e-12)


def test_nothing_where_no_trial_reached_or_names_its_learning_rate() -> None:
    rng = np.random.default_rng(0)
    assert optimum(study([[math.nan], [math.nan]], lrs=LRS[:2]), rng) is None
    assert optimum(study([[100.0]], lrs=[math.nan]), rng) is None


@pytest.mark.parametrize("best", [3.1e-3, 4e-3, 5.1e-3])
def test_what_a_finer_learning_rate_saves_is_three_times_the_depth_of_a_parabola_that_is_known(best: float) -> None:
    assert gain(study(parabola(best))) == pytest.approx(3 * 0.2 * math.log(best / 4e-3) ** 2, abs=1e-12)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("rise", [0.02, 0.2])
def test_beside_a_neighbour_that_was_stopped_the_parabola_is_as_steep_as_can_be(side: int, rise: float) -> None:
    """Its vertex lies towards the other neighbour; found by trying all of slope 1 at most."""
    rows = [[100 * math.exp(rise)], [100.0], [math.nan]][::-side]
    place = np.linspace(1e-4, STEP / 2, 4000, endpoint=False)
    curvature = rise / (STEP * (STEP - 2 * place))
    gentle = 2 * curvature * (STEP - place) <= 1
    wanted = (curvature * place**2)[gentle].max()
    assert gain(study(rows, lrs=LRS[:3])) == pytest.approx(wanted, rel=2e-3)


def test_up_to_a_neighbour_that_diverged_steps_may_fall_on() -> None:
    nothing = np.full((3, 1), math.nan)
    cliff = study([[130], [100], [math.nan]], lrs=LRS[:3], bound=nothing)
    assert gain(cliff) == pytest.approx(math.log(1.3))
    lone = study([[math.nan], [100], [math.nan]], lrs=LRS[:3], bound=nothing)
    assert gain(lone) == pytest.approx(STEP)
    near = study([[130], [100], [math.nan]], lrs=(2e-3, 4e-3, 4.2e-3), bound=nothing)
    assert gain(near) < 0.03


def test_nothing_is_said_of_edges_and_of_learning_rates_that_are_not_known() -> None:
    assert gain(study([[100], [120]], lrs=LRS[:2])) == 0.0
    assert gain(study(parabola(4.5e-3), lrs=[math.nan] * 5)) == 0.0


def test_a_finer_grid_leaves_less() -> None:
    left = []
    for count in (3, 5, 9, 17):
        lrs = np.geomspace(1e-3, 1.6e-2, count)
        left.append(max(gain(study(parabola(best, lrs), lrs=lrs)) for best in np.geomspace(3e-3, 5e-3, 9)))
    assert left == sorted(left, reverse=True)
    assert left[-1] < 0.01


def test_every_second_resample_saves_something_a_third_of_the_most_on_average() -> None:
    most = [0.3, 0.0, 0.6]
    saved = leftover(most, 20_000, np.random.default_rng(0))
    assert not saved[::2].any()
    assert saved.min() >= 0
    assert (saved <= most).all()
    assert saved[1::2].mean(axis=0) == pytest.approx(np.array(most) / 3, abs=0.005)
    assert 0.3 < np.corrcoef(saved[1::2, 0], saved[1::2, 2])[0, 1] < 0.6
