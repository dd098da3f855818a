"""Simulated searches and the laws that they are drawn from, and every batch-size rule beside the best schedule there
is."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.estimate.diagnosis import Verdict
from benchmarks import learning_rates
from benchmarks.bench_batch_schedules import RULES, table
from benchmarks.learning_rates import FARTHER, FEWER, TwoOptima, missed, searched
from benchmarks.telling import holds
from benchmarks.worlds import CRITICAL, WORLDS, logs, measure, tables
from cbs.schedules.batch_size import BATCH_SCHEDULES
from cbs.trial.config import TrialConfig
from sweeps.search.forecast import End
from tests.sweeps.search_worlds import World, found


@pytest.mark.parametrize("name", [name for name, world in WORLDS.items() if not world.common])
def test_truth_is_where_the_product_of_steps_and_examples_is_least_on_average(name: str) -> None:
    """On a grid of a hundred thousand batch sizes; a smooth world has it between those that it runs."""
    for runs in logs(WORLDS[name], 0).values():
        sizes = CRITICAL * np.exp(np.linspace(-12, 12, 100_001))
        product, reach = np.log(sizes) + 2 * np.log(runs.truth.steps(sizes)), round(math.log(2) / 24e-5)
        sums = np.r_[0.0, np.cumsum(product - product.min())]
        means = sums[2 * reach + 1 :] - sums[: -2 * reach - 1]
        truth = runs.truth.least_product
        if 0 < means.argmin() < len(means) - 1:
            assert truth == pytest.approx(sizes[means.argmin() + reach], rel=1e-3)
        else:
            assert truth == (0.0 if means[0] < means[-1] else math.inf)
        if WORLDS[name].smooth:
            assert runs.sizes[0] < truth < runs.sizes[-1]


def test_a_table_holds_every_run_that_was_made() -> None:
    """Stopped ones are censored at the steps run, missing ones have no row."""
    table, _ = tables(WORLDS["stopped at 1.25 times the fewest steps"], 0)
    assert len(table) == 8 * 5 * 3
    assert 0 < table["censored"].sum() < len(table) / 2
    assert table["steps"].notna().all()
    missing, _ = tables(WORLDS["a third of other learning rates' seeds missing"], 0)
    assert 70 < len(missing) < 110
    diverged, _ = tables(WORLDS["learning rates above the best diverge"], 0)
    assert diverged.loc[diverged["steps"].isna(), "censored"].all()
    assert diverged["steps"].isna().any()


@pytest.mark.parametrize(
    ("ends", "held"),
    [((90, 110), True), ((101, 110), False), ((90, 99), False), ((None, 99), False), ((None, None), True)],
)
def test_an_open_end_holds_all_on_its_side(ends: tuple[float | None, float | None], held: bool) -> None:
    assert holds(ends, 100.0) is held


def slow(*names: str) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "name",
    [
        "exponent 1",
        *slow(
            "exponent 1, shared seeds", "exponent falls from 1 to 0.6", "examples and steps U-shaped",
            "logarithmic tail", "stopped by a budget of 11 S_0", "a third of other learning rates' seeds missing",
            "learning rates above the best diverge", "noisy quadratic, tuned SGD",
            "two optimizers, knees 0.7 and 1.5",
        ),
    ],
)  # fmt: skip
def test_smooth_curves_are_ok_and_held(name: str) -> None:
    """12 sweeps. At 5 % more than 3 silent errors have probability 0.002; at 90 % fewer than 8 that are ok, 0.004.
    Intervals are narrow enough to be quoted."""
    found = measure(name, sweeps=12, resamples=200)
    assert found["silent"] <= 0.25
    assert found["ratio_silent"] <= 0.25
    assert found["ok"] >= 0.65
    assert found["half_width"] <= 0.3
    assert found["ratio"] == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("large batches 20 % slower", "points are off the curve"),
        *(
            pytest.param(name, verdict, marks=pytest.mark.slow)
            for name, verdict in (
                ("perfect scaling, then none", "points are off the curve"),
                ("perfect scaling, then the power 0.3, 2 % noise", "points are off the curve"),
                ("least product above all batch sizes", "above the measured batch sizes"),
                ("least product below all batch sizes", "below the measured batch sizes"),
            )
        ),
    ],
)
def test_worlds_that_change_at_once_or_end_too_early_are_seldom_ok(name: str, verdict: str) -> None:
    """9 of 10 and more are not: of 6 sweeps fewer than 4 have probability 0.016 at 90 %."""
    found = measure(name, sweeps=6, resamples=200)
    assert found["verdicts"][verdict] >= 4
    assert found["ok"] <= 0.34


def test_a_search_finds_the_best_learning_rates_for_less_than_a_grid() -> None:
    world = World(1.0, 0.5, 0.03, 0)
    search, trials, share = searched(world)
    inside, above = found(search, world)
    assert inside == len(search.studies) == 9
    assert max(above) < 0.05
    assert share < 0.5
    examples = sum(trial.config.batch_size * trial.final_step for trial in trials)
    grid = 3 * sum(math.exp(world.log_steps(size, world.best_lr(size) * 2.0**octave)) * size
                   for size in (4 * 2**power for power in range(9)) for octave in (-2, -1, 0, 1, 2))  # fmt: skip
    assert share == pytest.approx(examples / grid, rel=0.02)


def test_the_second_optimum_is_better_and_lies_behind_worse_learning_rates() -> None:
    world = TwoOptima(1.0, 0.0, 0.0, 0)
    config = searched(world)[1][0].config
    first = world.best_lr(config.batch_size)

    def steps(times: float) -> float:
        return world.end(replace(config, lr=first * times)).steps

    assert steps(FARTHER) == pytest.approx(FEWER * steps(1))
    between = [steps(FARTHER ** (place / 40)) for place in range(40)]
    assert max(between[:20]) == pytest.approx(steps(1) * math.exp(0.25 * (math.log(FARTHER) * 19 / 40) ** 2))
    assert between[21] == pytest.approx(FEWER * steps(1) * math.exp(0.25 * (math.log(FARTHER) * 19 / 40) ** 2))
    assert 2.5 < max(between) / steps(1) < 3
    assert all(world.end(replace(config, lr=first * FARTHER ** (place / 40))).reached for place in range(60))


def test_it_is_missed_and_the_verdict_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missed([0, 1]) == [Verdict.OK, Verdict.OK]

    class Farther(TwoOptima):
        def end(self, config: TrialConfig) -> End:
            return World.end(self, replace(config, lr=config.lr / FARTHER))

    monkeypatch.setattr(learning_rates, "TwoOptima", Farther)
    assert missed([0]) == []


PAGE = Path(__file__).resolve().parents[1] / "tables.md"


def test_no_rule_beats_the_ceiling_and_the_page_says_how_near_each_comes() -> None:
    made = table()
    assert set(RULES) <= set(BATCH_SCHEDULES.names())
    assert len(made) == 2 + len(RULES)  # each reaches the target
    assert all(1.0 <= float(line.split("|")[4]) < 5.0 for line in made[2:])
    assert "\n".join(made) in PAGE.read_text()
