from __future__ import annotations

import pytest

from sweeps.cell import Cell, Study
from sweeps.cluster import Resources
from sweeps.estimate import Estimator, StepCost, measure_cost, prior_steps
from sweeps.progress import duration
from sweeps.search import Search
from tests.sweeps.simulation import run_search, simulate, small_sweep

COST = StepCost(fixed=0.002, per_example=0.0001, evaluation=0.0)


def finished(search: Search, seconds_per_step: float):
    """The next trial of a search, run by the simulation, with a wall clock that belongs to it."""
    config = search.next()
    cell = Cell.of(config)
    result = simulate(config, search.best_steps(cell), 1.3)
    search.add(result)
    return result.replace(timing={"seconds": seconds_per_step * result.final_step})


def test_a_step_costs_a_fixed_part_and_a_part_per_example():
    assert COST.seconds(100, 10.0) == pytest.approx(10 * (0.002 + 0.01))


def test_the_prior_is_the_recipes_expectation_within_the_budget_else_the_budget():
    sweep = small_sweep()
    assert prior_steps(sweep, 4) == sweep.budget(4)
    assert prior_steps(sweep.replace(expected=(100.0, 3000.0)), 4) == 850.0
    assert prior_steps(sweep.replace(expected=(1e9, 0.0)), 4) == sweep.budget(4)


def test_before_anything_finished_the_prior_speaks_and_without_a_cost_nothing_does():
    search = Search(small_sweep())
    estimator = Estimator(search, COST, workers=2)
    planned = sum(search.counts(study)[1] for study in search.sweep.studies())
    assert estimator.seconds_left() > 0
    assert planned == 2 * 4 * 2 * 3
    assert Estimator(search, None, workers=2).seconds_left() is None


def test_a_finished_trial_rescales_the_estimates_of_its_neighbours():
    search = Search(small_sweep())
    estimator = Estimator(search, COST, workers=2)
    study = Study("merit", 64)
    before = estimator.trial_seconds(study)
    result = finished(search, 1.0)
    estimator.add(result)
    prior = COST.seconds(result.config.batch_size, prior_steps(search.sweep, result.config.batch_size))
    assert estimator.trial_seconds(study) == pytest.approx(before * result.final_step / prior)


def test_nothing_is_left_at_the_end_and_twice_the_workers_take_half_the_time():
    search = Search(small_sweep())
    one, two = Estimator(search, COST, workers=1), Estimator(search, COST, workers=2)
    assert one.seconds_left() == pytest.approx(2 * two.seconds_left())
    run_search(search)
    assert one.seconds_left() == 0.0


def test_measured_cost_is_positive_and_costs_little():
    # So far apart that the larger takes longer however busy the machine is.
    sweep = small_sweep(batch_sizes=(4, 2**13))
    cost = measure_cost(sweep)
    assert cost.seconds(2**13, 10.0) > 0.0
    assert cost.per_example > 0.0


@pytest.mark.parametrize(
    ("resources", "gpus", "expected"),
    [
        (Resources(workers=1), 0, 1),
        (Resources(workers=1, gpus_per_trial=0.5), 8, 1),
        (Resources(gpus_per_trial=2.0), 2, 1),
        (Resources(address="auto"), 0, 0),
        (Resources(address="auto", workers=12), 4, 12),
    ],
)
def test_trials_at_a_time(resources, gpus, expected):
    assert resources.parallel(gpus) == expected


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min 01 s"), (3599.7, "1 h 00 min"), (7380, "2 h 03 min")]
)
def test_durations_are_said_in_two_units(seconds, text):
    assert duration(seconds) == text
