"""Losses in place of log steps: what lies between learning rates, the noise, and losses at the best learning rate."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.comparison import Standing, Standings, largest_within, standings
from analysis.estimate.objective import Losses, draw_losses, loss_studies
from analysis.estimate.studies import Study

CONFIG = AnalysisConfig(resamples=400)


def study(losses: np.ndarray, lrs: np.ndarray, size: int = 8) -> Study:
    status = np.where(np.isfinite(losses), "BUDGET_EXHAUSTED", "DIVERGED").astype(object)
    nothing = np.full(losses.shape, np.nan)
    return Study(size, lrs, np.arange(losses.shape[1]), nothing, status, nothing, np.zeros(losses.shape, int), nothing)


def answered(tables: list[np.ndarray], lrs: np.ndarray, *, curve: bool = True) -> Losses:
    studies, scale = loss_studies([study(each, lrs, 2**n) for n, each in enumerate(tables)], tables)
    return draw_losses(studies, scale, CONFIG, curve=curve)


@pytest.mark.parametrize("offset", [0.0, 0.2, -0.4])
@pytest.mark.parametrize(
    "shape",
    [lambda x: 3 * x**2, lambda x: np.exp(x) - x - 1, lambda x: np.exp(-2 * x) + 2 * x - 1, lambda x: x**2 + x**4],
)
def test_what_a_rate_in_between_saves_is_known(shape: Callable[[np.ndarray], np.ndarray], offset: float) -> None:
    logs = 0.3 * (np.arange(7) - 3 + offset)
    found = answered([1 + 0.1 * n + shape(logs)[:, None] for n in range(4)], np.exp(logs))
    assert found.values == pytest.approx(1 + 0.1 * np.arange(4), abs=0.02)  # the next rates lose up to a tenth
    assert not found.edges.any()


@pytest.mark.parametrize("unit", [1e-6, 1e9])
def test_the_unit_of_the_metric_changes_nothing(unit: float) -> None:
    rng = np.random.default_rng(3)
    lrs = 2.0 ** np.arange(5)
    tables = [((np.log(lrs / 4) ** 2)[:, None] + 0.1 * rng.standard_normal((5, 3)) + size) for size in range(5)]
    np.testing.assert_allclose(
        answered([unit * table for table in tables], lrs).drawn / unit, answered(tables, lrs).drawn, rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 2])
def test_losses_are_covered_and_their_noise_is_found(seeds: int) -> None:
    """Thirty sweeps of eight batch sizes on parabolas. A seed's loss at the best learning rate draws on its runs at all
    of them, whose noise is independent here: it is known better than one run is."""
    lrs, truth, hits, noises = np.exp(0.7 * np.arange(-3, 4) + 0.2), 2 + 0.1 * np.arange(8), [], []
    for turn in range(30):
        noise = 0.1 * np.random.default_rng(turn).standard_normal((8, 7, seeds))
        found = answered([loss + np.log(lrs)[:, None] ** 2 + own for loss, own in zip(truth, noise, strict=True)], lrs)
        low, high = np.quantile(found.drawn, [0.025, 0.975], axis=0)
        hits.append(((low <= truth) & (truth <= high)).mean())
        noises.append(found.deviation)
    assert np.mean(hits) >= 0.9
    assert 0.1 / np.sqrt(len(lrs)) < np.mean(noises) < 0.1


def test_seeds_that_are_lucky_everywhere_leave_levels_unknown_and_differences_known() -> None:
    lucky, own = np.random.default_rng(0).standard_normal((2, 8, 4))
    for noise, ratio in ((lucky[:1] + 0.1 * own, 0.3), (own, None)):
        found = answered([(2 + 0.1 * n + 0.1 * row)[None] for n, row in enumerate(noise * np.ones((8, 1)))], np.ones(1))
        spread = (found.drawn[:, 4] - found.drawn[:, 3]).std() / found.drawn[:, 3].std()
        assert spread < ratio if ratio else spread > 0.3


def test_without_anything_that_shows_noise_there_are_no_draws() -> None:
    lrs = 2.0 ** np.arange(3)
    tables = [(np.log(lrs / 2) ** 2)[:, None] + size for size in range(3)]
    found = answered(tables, lrs)
    assert found.drawn.shape == (0, 3)
    assert found.freedom == 0
    assert math.isfinite(found.values.sum())
    assert found.at(np.log(found.sizes)) == pytest.approx(found.values[None])


def test_conditions_that_no_curve_joins_have_draws_of_their_own() -> None:
    noise = 0.01 * np.random.default_rng(0).standard_normal((5, 4))
    losses = np.array([1.0, 3.0, 2.0, 5.0, 4.0])
    found = answered([(loss + row)[None] for loss, row in zip(losses, noise, strict=True)], np.ones(1), curve=False)
    assert found.draws is None
    assert found.values == pytest.approx(losses, abs=0.02)
    assert found.drawn.std(axis=0) == pytest.approx(0.005, rel=0.6)


EQUAL, WORSE, OPEN = Standing.EQUAL, Standing.WORSE, Standing.UNKNOWN


def told(values: object, deviation: float, margin: float = 0.01, *, seed: int = 0) -> Standings:
    means = np.asarray(values, dtype=float)
    return standings(means + deviation * np.random.default_rng(seed).standard_normal((4000, len(means))), margin, 0.95)


@pytest.mark.parametrize(
    ("values", "deviation", "expected"),
    [
        ([1.0, 1.0, 1.002, 1.01, 1.03], 0.001, (EQUAL, EQUAL, EQUAL, OPEN, WORSE)),
        ([1.0] * 5, 0.02, (OPEN,) * 5),  # not finding a difference is not equality
        ([1.05, 1.003, 1.0, 1.003, 1.05], 0.0005, (WORSE, EQUAL, EQUAL, EQUAL, WORSE)),
        ([1.0], 0.001, (EQUAL,)),
    ],
)
def test_equal_worse_and_neither(values: list[float], deviation: float, expected: tuple[Standing, ...]) -> None:
    assert told(values, deviation).standings == expected


@pytest.mark.parametrize(("excess", "which"), [(0.0101, EQUAL), (0.0099, WORSE)])
def test_an_error_is_made_in_at_most_one_of_twenty_worlds(excess: float, which: Standing) -> None:
    """The truth lies just on the other side of the margin at every condition but one; the noise is a fifth of it."""
    truth, wrong = np.array([1.0, 1 + excess, 1 + excess, 1 + excess, 1 + excess]), 0
    for turn in range(200):
        seen = truth + 0.002 * np.random.default_rng([turn, 1]).standard_normal(5)
        wrong += which in told(seen, 0.002, seed=turn).standings[1:]
    assert wrong <= 14  # of 200 at 5 %: more in one world of forty


@pytest.mark.parametrize(("apart", "may_be_best"), [(1.5, True), (1.8, False)])
def test_one_that_may_be_the_best_errs_on_one_side_only(apart: float, may_be_best: bool) -> None:
    # two conditions whose difference has deviation 1: 5 % lie beyond 1.645 of it, 2.5 % beyond 1.96
    drawn = np.array([apart, 0.0]) + np.random.default_rng(0).standard_normal((20_000, 2)) / np.sqrt(2)
    assert standings(drawn, 1e-3, 0.95).may_be_best.tolist() == [may_be_best, True]


def test_the_largest_within_is_the_last_place_on_straight_lines() -> None:
    places = np.arange(4.0)
    curves = np.array([[1.0, 0.0, 1.0, 3.0], [0.0, 0.5, 0.2, 0.1], [0.0, 2.0, 0.0, 4.0], [3.0, 2.0, 1.0, 0.0]])
    assert largest_within(places, curves, 1.0).tolist() == [2.0, math.inf, 2.25, math.inf]
    assert largest_within(places, curves[:1], 0.5).tolist() == [1.5]


def test_a_best_rate_at_the_edge_is_a_bound() -> None:
    logs = np.arange(4.0)
    tables = [1 + (logs - n)[:, None] ** 2 + 0.01 * np.arange(3) for n in range(4)]
    assert answered(tables, np.exp(logs)).edges.tolist() == [True, False, False, True]
    assert not answered([table[:1] for table in tables], np.ones(1)).edges.any()


def test_the_curve_passes_between_two_sizes_as_well_as_through_them() -> None:
    tables = [(2 + max(0, n - 3) * 0.1 + 0.001 * np.array([-1.0, 1, 0]))[None] for n in range(8)]
    found = answered(tables, np.ones(1))
    np.testing.assert_allclose(found.at(np.log(found.sizes)), found.drawn)
    between = found.at(np.log([2**3.5]))[:, 0]
    assert between.std() > 2 * found.drawn[:, 3].std()  # where it begins to rise is not known


def test_a_loss_at_the_edge_is_as_well_known_as_its_seeds_make_it() -> None:
    logs, noise = np.arange(4.0), 0.01 * np.random.default_rng(0).standard_normal((4, 4, 4))
    found = answered([1 + (logs - n)[:, None] ** 2 + own for n, own in enumerate(noise)], np.exp(logs))
    assert found.edges.tolist() == [True, False, False, True]
    assert found.drawn[:, [0, 3]].std(axis=0) == pytest.approx([found.deviation / 4**0.5] * 2, rel=0.15)
