"""Draws of several optimizers side by side, and the difference of two of them."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.config import AnalysisConfig
from analysis.estimate.best_rate import AtBest
from analysis.estimate.comparison import correlated, critical_sizes, difference, together
from analysis.estimate.definitions.least_product import least_product
from analysis.estimate.draws import Draws, draw
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.read.results import load
from tests.factories import Truth, sweep

TRUTH = Truth(lr_at_1=2e-3, lr_power=0.0, noise=0.05)
DRAWN = st.sampled_from([-math.inf, math.inf, 0.0, 1.0, 2.0, 3.0])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    """Two optimizers at two targets each."""
    root = tmp_path_factory.mktemp("two")
    sweep(root, {"adamw": TRUTH, "muon": TRUTH}, batch_sizes=(2, 8, 32, 128, 512), lrs=(1e-3, 2e-3, 4e-3), growth=1.5)
    return answers(load(root), AnalysisConfig(resamples=400), targets=[2.4, 2.8], noise=False)


def test_draws_of_different_optimizers_are_in_another_order_and_targets_of_one_in_the_same(found: list[Answer]) -> None:
    joint = together(found)
    sizes = np.array([2.0, 32.0, 512.0])
    for answer, draws in zip(found, joint, strict=True):
        own, other = answer.draws.drawn(sizes), draws.drawn(sizes)
        np.testing.assert_array_equal(np.sort(own, axis=0), np.sort(other, axis=0))
        assert (own == other).all() == (answer.group is found[0].group), "the first optimizer keeps its order"
        # what belongs to one draw stays with it
        places = [int(np.flatnonzero((own == row).all(axis=1))[0]) for row in other]
        np.testing.assert_array_equal(answer.draws.law.critical[places], draws.law.critical)
    curves = [draws.drawn(sizes)[:, 1] for draws in joint if draws is not None]
    alike = np.abs(np.corrcoef(curves))
    assert alike[0, 1] > 0.5 < alike[2, 3]
    assert alike[:2, 2:].max() < 0.2, "standard error 0.05"


def test_without_draws_there_is_none_and_the_others_stay(found: list[Answer]) -> None:
    without = dataclasses.replace(found[0], draws=None, hyperbola=None)
    assert together([without, found[2]])[0] is None
    assert np.isnan(critical_sizes([without, found[2]])[0]).all()
    assert np.isfinite(critical_sizes([without, found[2]])[1]).any()


@given(rows=st.lists(st.tuples(DRAWN, DRAWN), min_size=1, max_size=8))
def test_the_probability_is_the_share_of_rows_and_turns_round(rows: list[tuple[float, float]]) -> None:
    first, second = np.array(rows).T
    one, two = difference(first, second, 0.5), difference(second, first, 0.5)
    assert one.probability == pytest.approx(sum((a > b) + 0.5 * (a == b) for a, b in rows) / len(rows))
    assert one.probability + two.probability == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("first", "second", "probability", "value", "ends"),
    [
        ([1.0] * 100, [2.0] * 100, 0.0, -1.0, (-1.0, -1.0)),
        ([math.inf] * 100, [2.0] * 100, 1.0, None, (None, None)),
        ([math.inf] * 100, [math.inf] * 100, 0.5, None, (None, None)),
        ([-math.inf] * 100, [3.0] * 100, 0.0, None, (None, None)),
        ([5.0] * 90 + [math.inf] * 10, [2.0] * 100, 1.0, 3.0, (3.0, None)),
        ([5.0] * 90 + [math.inf] * 10, [2.0] * 90 + [math.inf] * 10, 0.95, 3.0, (None, None)),
        ([math.nan] * 100, [3.0] * 100, None, None, (None, None)),
        ([math.nan] * 50 + [6.0] * 50, [3.0] * 100, 1.0, 3.0, (3.0, 3.0)),
    ],
)
def test_draws_that_are_not_bounded_count_as_that(
    first: list[float], second: list[float], probability: float | None, value: float | None, ends: tuple
) -> None:
    found = difference(np.array(first), np.array(second), 0.95)
    assert (found.probability, found.value, found.interval) == (pytest.approx(probability), value, ends)


def test_what_two_share_cancels_in_their_difference_and_not_if_one_is_in_another_order() -> None:
    rng = np.random.default_rng(0)
    common, own = rng.standard_normal(4000), 0.1 * rng.standard_normal((2, 4000))
    paired = difference(0.3 + common + own[0], common + own[1], 0.95)
    apart = difference(0.3 + common + own[0], rng.permutation(common) + own[1], 0.95)
    assert paired.value == pytest.approx(0.3, abs=0.02)
    (low, high), (below, above) = paired.interval, apart.interval
    assert (high - low) / 3.92 == pytest.approx(0.1 * math.sqrt(2), rel=0.1)
    assert (above - below) / 3.92 == pytest.approx(math.sqrt(2), rel=0.1)
    assert paired.probability > 0.97 > 0.7 > apart.probability
    ratio = paired.ratio
    assert (ratio.value, *ratio.interval) == pytest.approx([math.exp(each) for each in (paired.value, low, high)])


SIZES = 2.0 ** np.arange(2, 10)


def made(critical: float, exponent: float, noise: float, rng: np.random.Generator, seed: int) -> Draws:
    """Draws of a curve measured at eight batch sizes with three seeds."""
    logs = np.log1p((critical / SIZES) ** exponent)[:, None] + noise * rng.standard_normal((8, 3))
    unknown = np.full(3, math.nan)
    return draw(SIZES.tolist(), [AtBest(values=row, floors=unknown, ceilings=unknown) for row in logs], 200, seed)


def compared(index: int, ratio: float, exponents: tuple[float, float] = (1.0, 1.0)) -> tuple[float, bool]:
    """The probability that the first of two critical batch sizes is larger, and whether the interval of their ratio
    holds the truth. (With the exponent a the least product is at the critical batch size times (2 a - 1)^(1/a).)"""
    rng = np.random.default_rng(index)
    noise, places = rng.uniform(0.03, 0.1), [40.0 * ratio, 40.0]
    sizes = [
        least_product(made(at / (2 * a - 1) ** (1 / a), a, noise, rng, 2 * index + place))
        for place, (at, a) in enumerate(zip(places, exponents, strict=True))
    ]
    with np.errstate(divide="ignore"):
        found = difference(*np.log(sizes), 0.95)
    low, high = found.interval
    truth = math.log(ratio)
    return found.probability, (low is None or low <= truth) and (high is None or truth <= high)


@pytest.mark.slow
@pytest.mark.parametrize("exponents", [(1.0, 1.0), (0.85, 1.1)])
def test_with_equal_truths_the_probability_is_no_more_certain_than_uniform(exponents: tuple[float, float]) -> None:
    """100 pairs: mean within four standard errors of 1/2, tails of 5 % within three; they may be thinner, as a prior
    draws both to the same exponent."""
    probability, holds = np.array([compared(index, 1.0, exponents) for index in range(100)]).T
    assert abs(probability.mean() - 0.5) < 4 * math.sqrt(1 / 12 / 100)
    assert np.mean((probability < 0.025) | (probability > 0.975)) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 100)
    assert probability.std() > 0.1
    assert holds.mean() > 0.95 - 3 * math.sqrt(0.05 * 0.95 / 100)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
def test_draws_are_put_in_an_order_that_correlates_them(correlation: float) -> None:
    first, other = np.random.default_rng(0).standard_normal((2, 4000))
    order = correlated(np.exp(first), other**3, correlation, [1])
    assert sorted(order.tolist()) == [*range(4000)]
    assert np.corrcoef(first, other[order])[0, 1] == pytest.approx(correlation, abs=0.04)
