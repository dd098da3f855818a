import math
from itertools import pairwise

import pytest

from cbs.registry.choices import parse_choice
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.outlook.report import reasons
from sweeps.running.run import SweepRun
from sweeps.search.forecast import End, ended, play
from sweeps.search.search import Search
from sweeps.spec.axes import Cell, StagedStudy, StudyKey
from tests.sweeps.simulation import run_search, small_sweep


def outcome(results):
    """What must not depend on timing: every status, and every crossing."""
    return {trial_id: (result.status, result.steps_to_target) for trial_id, result in results.items()}


def law(distance, slope, *, curvature=0.25, diverges=10.0):
    """How trials end whose best learning rate lies ``distance`` times the default at batch size 16."""

    def end(config):
        gap = math.log(config.lr / (4e-3 * distance * (config.batch_size / 16) ** slope))
        if gap > math.log(diverges):
            return End(20.0, reached=False, distance=math.inf)
        steps = (100 + 3000 / config.batch_size) * math.exp(curvature * gap**2)
        if steps > config.max_steps:
            return End(config.max_steps, reached=False, distance=1 - config.max_steps / steps)
        return End(steps)

    return end


ONE = {"optimizers": (parse_choice("adamw"),)}


@pytest.mark.parametrize("distance", [1e-6, 1 / 30, 1.0, 3.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_every_optimum_is_interior_however_far_and_nearly_the_best(distance, slope):
    search = Search(small_sweep(**ONE))
    play(search, law(distance, slope))
    for study in search.studies:
        lr, steps = search.studies[study].best
        lrs = search.studies[study].lrs
        assert search.studies[study].interior
        # within a factor of 2 on both sides, and what a finer one could gain is below 5 %, on curves this smooth
        assert max(lrs[lrs.index(lr) + 1] / lr, lr / lrs[lrs.index(lr) - 1]) < 2.01
        assert steps < 1.05 * (100 + 3000 / study.batch_size)


def test_a_cliff_next_to_the_optimum_is_approached_to_the_resolution():
    """At the edge of stability steps fall with the learning rate until training diverges: a factor of 2 loses half."""

    def end(config):
        if config.lr > 5.9e-3:
            return End(5.0, reached=False, distance=math.inf)
        return End(1.0 / config.lr)

    for resolution in (1.04, 1.2, 2.0):
        search = Search(small_sweep(**ONE, batch_sizes=(16,), lr_resolution=resolution))
        play(search, end)
        lr, _ = search.studies[StudyKey("adamw", 16)].best
        assert 5.9e-3 / resolution / 1.02 < lr <= 5.9e-3
        lrs = sorted(search.studies[StudyKey("adamw", 16)].lrs)
        assert min(b / a for a, b in pairwise(lrs)) >= resolution * 0.999


def test_a_cell_lets_the_others_go_beyond_what_smaller_or_larger_batches_need(tmp_path):
    """At its best learning rate a larger batch takes no more steps, and a smaller one no more examples."""
    search = Search(small_sweep(**ONE, batch_sizes=(4, 16, 64), seeds=(0,)))
    while (config := search.next()).batch_size == 16:  # one at a time, each the best of its cell
        search.add(ended(config, End(400.0 * (1 + abs(math.log(config.lr / 4e-3)))), 400.0))
    for batch_size, most in ((64, 1.3 * 400), (4, 1.3 * 1600)):
        for taken, others in ((None, False), (most - 1, False), (most + 1, True)):
            run = SweepRun(Search(search.sweep, search.trials()), Store(tmp_path), 1.0)
            first = next(config for config, _ in iter(run.next, None) if config.batch_size == batch_size)
            run.where[first.trial_id] = {"step": taken, "host": "here"}  # the last sign of life
            second, _ = run.next()
            assert (second.batch_size == batch_size) is others


def valley(small: dict[float, float], large: dict[float, float]):
    """Two batch sizes, 16 and 32: steps by octaves from the default, and far more at every other learning rate."""

    def end(config):
        octave = round(math.log2(config.lr / 4e-3) * 2) / 2
        known = small if config.batch_size == 16 else large
        return End(known.get(octave, 900.0 if config.batch_size == 16 else 400.0))

    return end


TWO = {**ONE, "batch_sizes": (16, 32), "seeds": (0,), "max_steps": 1000}


def test_a_bracket_that_chance_closed_does_not_hide_a_better_learning_rate():
    """Twice the learning rate takes 2 % more steps at batch size 16, four times it half of them."""
    search = Search(small_sweep(**TWO))
    play(search, valley({0: 278, 1: 285, 2: 150, 3: 200, -1: 400}, {0: 250, 1: 130, 2: 100, 3: 180, -1: 300}))
    lr, steps = search.studies[StudyKey("adamw", 16)].best
    assert 11e-3 < lr < 23e-3
    assert steps == pytest.approx(150)


@pytest.mark.parametrize(("at_32", "asked"), [(103.0, True), (170.0, False)])
def test_a_fall_that_no_scaling_allows_asks_for_the_learning_rate_that_the_larger_size_suggests(at_32, asked):
    """The bracket at 16 is closed beyond any noise, around the wrong one of two valleys."""
    small = {-1: 400, -0.5: 300, 0: 278, 0.5: 300, 1: 400, 1.5: 200, 2: 170, 2.5: 200}
    large = {-0.5: 300, 0.5: 270, 1.5: 200, 2: 150, 2.5: at_32, 3: 150, 3.5: 220}
    for order in ("one after the other", "side by side"):
        search = Search(small_sweep(**TWO))
        play(search, valley(small, large), workers=1 if order == "one after the other" else 8)
        said = [why for why in search.studies[StudyKey("adamw", 16)].why.values() if "looks wrong" in why]
        assert len(said) == asked
        if asked:
            assert search.studies[StudyKey("adamw", 16)].best[1] == pytest.approx(170)
            assert "times as many steps as at 32" in said[0]


def test_far_optima_cost_few_trials_more():
    counts = [len(play(Search(small_sweep(**ONE)), law(distance, 0.5)).results) for distance in (1.0, 30.0, 1e3, 1e6)]
    assert counts[-1] <= counts[0] + 25
    assert counts[0] <= 4 * (3 + 1) + 6


def test_a_seed_that_contradicts_the_first_moves_the_choice():
    """On seed 0 a poor learning rate is lucky; the other seeds show it, and its neighbour gets all of them."""

    def end(config):
        lucky = config.seed == 0 and config.lr == 8e-3
        gap = math.log(config.lr / 4e-3)
        return End(1000 * math.exp(0.25 * gap**2) * (0.8 if lucky else 1.0))

    search = Search(small_sweep(**ONE, batch_sizes=(16,), seeds=tuple(range(8))))
    play(search, end)
    study = StudyKey("adamw", 16)
    assert search.studies[study].best[0] == 4e-3
    assert {seed for lr, seed in search.studies[study].why if lr == 4e-3} == set(range(8))


def test_where_nothing_reaches_the_target_the_search_ends():
    for end in (
        lambda config: End(config.max_steps, reached=False, distance=1.0 + abs(math.log(config.lr / 0.1))),
        lambda config: End(config.max_steps, reached=False, distance=1.0 - 1e-9 * config.lr),
        lambda config: End(config.max_steps, reached=False, distance=1.0 + 1e-9 * config.lr),
        lambda config: End(3.0, reached=False, distance=math.inf),
    ):
        search = Search(small_sweep())
        played = play(search, end, most=500)
        assert search.done
        assert len(played.results) <= 11 * len(search.studies)
        assert all(study.best is None and not study.interior for study in search.studies.values())


@pytest.mark.parametrize("shift", [0.05, 0.3, 0.55, 0.8])
def test_the_target_that_a_budget_allows_just_below_a_cliff_alone_is_reached(shift):
    """Steps fall as 1 / lr up to where training diverges, and the budget holds 1.4 times the fewest."""
    cliff = 4e-3 * 2.0 ** (2 + shift)

    def end(config):
        steps = 100 * cliff / config.lr
        if steps < 100:
            return End(20.0, reached=False, distance=math.inf)
        return End(steps) if steps < 140 else End(140.0, reached=False, distance=0.5)

    search = Search(small_sweep(**ONE, batch_sizes=(16,), seeds=(0, 1)))
    play(search, end)
    assert search.studies[StudyKey("adamw", 16)].interior
    assert search.studies[StudyKey("adamw", 16)].best[1] < 130


def test_where_every_trial_fails_or_finds_no_memory_a_study_ends_at_once():
    for status in (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY):
        search, count = Search(small_sweep()), 0
        while (config := search.next()) is not None:
            search.add(ended(config, End(1.0), 1.0).replace(status=status, steps_to_target=None, evaluations=[]))
            count += 1
        assert search.done
        assert count == 2 * len(search.studies)


def test_batch_sizes_added_later_start_where_the_others_lead_and_leave_these_alone():
    first = play(Search(small_sweep(**ONE)), law(100.0, 0.5))
    search = Search(small_sweep(**ONE, batch_sizes=(4, 16, 64, 256, 1024)), first.results)
    more = play(search, law(100.0, 0.5))
    new = [r.config for r in more.results if r.config.batch_size == 1024]
    assert len(new) <= 6
    assert len(more.results) - len(new) <= 6  # the middle is another one, and starts at the default


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


def test_pruning_changes_no_minimum_of_a_grid_and_saves_work():
    pruned, full = (Search(small_sweep(method="grid", prune_factor=factor)) for factor in (1.3, None))
    pruned_results, full_results = run_search(pruned), run_search(full)
    for cell in pruned.cells():
        assert pruned.best_steps(cell) == full.best_steps(cell)
    for study in pruned.studies:
        assert pruned.studies[study].best == full.studies[study].best
    work = [sum(r.final_step for r in results.values()) for results in (pruned_results, full_results)]
    assert work[0] < work[1]
    assert any(r.status is TrialStatus.PRUNED for r in pruned_results.values())


def test_given_learning_rates_are_all_tried_and_no_others():
    search = Search(small_sweep(lrs=(1e-3, 4e-3)))
    results = run_search(search)
    assert {result.config.lr for result in results.values()} == {1e-3, 4e-3}
    assert len(results) == 2 * 4 * 2 * 2


def test_a_trial_that_was_lost_is_started_again():
    search = Search(small_sweep())
    lost = search.next()
    search.give_back(lost)
    assert lost in search.waiting()
    results = run_search(search)
    assert lost.trial_id in results


def test_beside_a_default_of_which_nothing_is_known_only_a_higher_learning_rate_is_tried_at_first():
    search, started = Search(small_sweep(**ONE)), []
    while (config := search.next()) is not None:
        started.append(config.lr)
    assert started == [4e-3, 8e-3]


def test_variants_are_searched_apart_and_nothing_of_one_counts_for_the_other():
    variants = tuple(map(parse_choice, ("adamw", "adamw(eps=0.5)")))
    alone = [Search(small_sweep(optimizers=(variant,))) for variant in variants]
    expected = {trial: result for search in alone for trial, result in run_search(search).items()}
    both = Search(small_sweep(optimizers=variants))
    assert outcome(run_search(both)) == outcome(expected)
    for study in both.studies:
        assert (
            both.studies[study].best == next(search for search in alone if study in search.studies).studies[study].best
        )
    half = {trial: result for trial, result in expected.items() if result.config.optimizer == variants[0]}
    again = Search(small_sweep(optimizers=variants), half.values())
    assert {config.optimizer.options.get("eps") for config in again.waiting()} == {0.5}
    assert outcome(half | run_search(again)) == outcome(expected)


def staged(later: int, seeds: int = 1, bracket: bool = False):
    """Batch sizes 8 and 32, and a later one."""
    sweep = small_sweep(**ONE)
    plans = [(8, 0, False), (32, 0, False), (later, 1, bracket)]
    return sweep.replace(
        batch_sizes=tuple(sorted(size for size, *_ in plans)),
        seeds=tuple(range(seeds)),
        staged=tuple(
            StagedStudy(StudyKey("adamw", size), stage, tuple(range(seeds)), bracket=wanted)
            for size, stage, wanted in plans
        ),
    )


def test_between_batch_sizes_that_were_searched_one_learning_rate_is_enough():
    for changes, count in (({}, 1), ({"seeds": 3}, 1), ({"bracket": True}, 3)):
        search = Search(staged(16, **changes))
        play(search, law(3.0, 0.5))
        study = StudyKey("adamw", 16)
        assert len(search.studies[study].lrs) == count
        assert search.studies[study].interior
        assert search.studies[study].best[1] < 1.03 * (100 + 3000 / 16)
        # it says nothing of its own about the best learning rates of others
        assert (search.studies[study].optimum is None) == (count == 1)
    # far from them it takes more
    far = Search(staged(512))
    play(far, law(3.0, 0.5))
    assert len(far.studies[StudyKey("adamw", 512)].lrs) > 1


def test_a_learning_rate_at_which_others_would_be_faster_is_not_believed():
    """At batch size 16 alone the best one is eight times as high as the others say."""

    def odd(config):
        shift = 8.0 if config.batch_size == 16 else 1.0
        return law(3.0 * shift, 0.5)(config)

    search = Search(staged(16))
    play(search, odd)
    study = StudyKey("adamw", 16)
    assert len(search.studies[study].lrs) > 2
    assert search.studies[study].best[1] < 1.1 * (100 + 3000 / 16)


def test_a_row_of_a_report_describes_its_own_trial():
    search = Search(small_sweep())
    results = run_search(search)
    rows = reasons(search)
    assert {row["seed"] for row in rows} > {0}
    assert {row["trial"] for row in rows} == set(results)
    for row in rows:
        config = results[row["trial"]].config
        cell = Cell(row["optimizer"], row["batch_size"], row["seed"])
        assert (cell, row["lr"]) == (Cell.of(config), config.lr)
        assert row["status"] == str(search.studies[cell.study].results[row["lr"], row["seed"]].status)
