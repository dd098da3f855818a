from __future__ import annotations

import math

import numpy as np
import pytest

from cbs.choices import parse_choice
from cbs.record import TrialStatus
from sweeps.cell import Cell, Study
from sweeps.search import Search, edge, lattice, start_window
from tests.sweeps.simulation import run_search, simulate, small_sweep, true_steps


def outcome(results):
    """What must not depend on timing: every status, and every crossing."""
    return {trial_id: (result.status, result.steps_to_target) for trial_id, result in results.items()}


def test_every_optimum_is_interior_and_near_the_true_one():
    search = Search(small_sweep())
    run_search(search)
    for study in search.sweep.studies():
        lr, _ = search.best(study)
        tried = search.planned[study]
        assert tried[0] < lr < tried[-1]
        config = search.sweep.trial(Cell(study.optimizer, study.batch_size, 0), lr)
        # A factor-2 grid has a point within sqrt(2) of the optimum; seed noise of 3 % may pick its neighbour.
        assert abs(math.log(lr / (1.3e-3 * study.batch_size**0.75))) < math.log(2.0), config.trial_id


def test_the_grid_grows_beyond_the_optimizers_own_when_the_optimum_does():
    search = Search(small_sweep(batch_sizes=(256,)))
    run_search(search)
    assert max(search.planned[Study("merit", 256)]) > max(search.sweep.lr_grid("merit"))


@pytest.mark.parametrize("order", range(6))
def test_results_do_not_depend_on_the_order_in_which_trials_finish(order):
    reference = outcome(run_search(Search(small_sweep()), order=0, workers=1))
    assert outcome(run_search(Search(small_sweep()), order=order + 1, workers=1 + order)) == reference


@pytest.mark.parametrize("stop_after", [1, 7, 20, 33])
def test_a_killed_sweep_that_is_run_again_ends_like_an_undisturbed_one(stop_after):
    reference = outcome(run_search(Search(small_sweep())))
    kept = run_search(Search(small_sweep()), order=5, stop_after=stop_after)
    again = Search(small_sweep(), kept.values())
    results = kept | run_search(again, order=9)
    assert outcome(results) == reference


def test_pruning_changes_no_minimum_and_saves_work():
    pruned, full = Search(small_sweep()), Search(small_sweep(prune_factor=None))
    pruned_results, full_results = run_search(pruned), run_search(full)
    for cell in pruned.cells():
        assert pruned.best_steps(cell) == full.best_steps(cell)
    for study in pruned.sweep.studies():
        assert pruned.best(study) == full.best(study)
    work = [sum(r.final_step for r in results.values()) for results in (pruned_results, full_results)]
    assert work[0] < work[1]
    assert any(r.status is TrialStatus.PRUNED for r in pruned_results.values())


def test_given_learning_rates_are_all_tried_and_no_others():
    search = Search(small_sweep(lrs=(1e-3, 4e-3)))
    results = run_search(search)
    assert {result.config.lr for result in results.values()} == {1e-3, 4e-3}
    assert len(results) == 2 * 4 * 2 * 2


def test_every_trial_runs_once_and_no_trial_twice():
    search = Search(small_sweep())
    seen = []
    while (config := search.next()) is not None:
        seen.append(config.trial_id)
        cell = Cell.of(config)
        search.add(simulate(config, search.best_steps(cell), 1.3))
    assert search.done
    assert len(seen) == len(set(seen)) == sum(search.counts(study)[1] for study in search.sweep.studies())


def test_a_trial_that_was_lost_is_started_again():
    search = Search(small_sweep())
    lost = search.next()
    search.give_back(lost)
    assert lost in search.waiting()
    results = run_search(search)
    assert lost.trial_id in results


def test_seeds_added_later_run_only_what_is_missing():
    first = run_search(Search(small_sweep()))
    more = Search(small_sweep(seeds=(0, 1, 2)), first.values())
    new = run_search(more)
    assert {result.config.seed for result in new.values() if result.trial_id not in first} == {2}


def test_a_first_trial_starts_in_the_middle_and_large_batches_go_first():
    config = Search(small_sweep(optimizers=small_sweep().optimizers[:1])).next()
    assert (config.batch_size, config.lr) == (256, 4e-3)


def test_start_window_lies_in_the_lattice_and_the_lattice_keeps_the_ratio():
    sweep = small_sweep()
    for name in ("adamw", "merit"):
        grid = lattice(sweep, name)
        assert set(start_window(sweep, name)) <= set(sweep.lr_grid(name)) <= set(grid)
        assert np.allclose(np.diff(np.log(grid)), math.log(2.0))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([[9, 9], [5, 5], [9, 9]], 0),
        ([[5, 5], [9, 9], [9, 9]], -1),
        ([[9, 9], [9, 9], [5, 5]], 1),
        ([[math.nan, 1], [5, 5], [9, 9]], 0),
    ],
)
def test_edge(steps, expected):
    assert edge(np.array(steps, dtype=float), np.ones(3)) == expected


def test_where_nothing_reached_the_target_the_nearest_miss_leads():
    nothing = np.full((3, 2), np.nan)
    assert edge(nothing, np.array([0.5, 0.2, 0.1])) == 1
    assert edge(nothing, np.array([0.5, 0.2, 0.3])) == 0
    assert edge(nothing, np.full(3, np.inf)) == -1


def test_the_simulation_diverges_far_above_the_best_learning_rate():
    config = small_sweep().trial(Cell("adamw", 4, 0), 1.0)
    assert true_steps(config) == math.inf


def test_variants_are_searched_apart_and_nothing_of_one_counts_for_the_other():
    variants = tuple(map(parse_choice, ("adamw", "adamw(eps=0.5)")))
    alone = [Search(small_sweep(optimizers=(variant,))) for variant in variants]
    expected = {trial: result for search in alone for trial, result in run_search(search).items()}
    both = Search(small_sweep(optimizers=variants))
    assert outcome(run_search(both)) == outcome(expected)
    for study in both.sweep.studies():
        assert both.best(study) == next(search for search in alone if study in search.planned).best(study)
    half = {trial: result for trial, result in expected.items() if result.config.optimizer == variants[0]}
    again = Search(small_sweep(optimizers=variants), half.values())
    assert {config.optimizer.options.get("eps") for config in again.waiting()} == {0.5}
    assert outcome(half | run_search(again)) == outcome(expected)
