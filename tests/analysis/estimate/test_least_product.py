"""The headline: where steps times examples are least, for any exchange rate, and the range that is as good."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from analysis.estimate.definitions import build
from analysis.estimate.definitions.least_product import least_product, within
from analysis.estimate.prior import STEP
from tests.analysis.estimate.exact_draws import CHORD, CRITICAL, SIZES, of_law
from tests.certified import mccandlish2018


def test_there_one_percent_fewer_steps_cost_one_percent_more_examples() -> None:
    """With the worked points of the paper: twice the fewest steps and twice the fewest examples; and doubling from
    half an octave below saves 29 % of the steps."""
    measured = of_law(1.0, mccandlish2018.MIN_STEPS, mccandlish2018.CRITICAL, np.exp(0.7 * np.arange(6, 14)))
    (found,) = build("least_product")([measured])
    assert found == pytest.approx(mccandlish2018.CRITICAL, rel=CHORD)
    near = measured.draws.drawn(found * np.exp([-0.1, 0.1, -0.5 * math.log(2), 0.5 * math.log(2)]))[0]
    fewer, more = near[1] - near[0], near[1] - near[0] + 0.2
    assert -fewer == pytest.approx(more, rel=0.02)
    assert math.expm1(near[3] - near[2]) == pytest.approx(-0.29, abs=0.003)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.4])
@pytest.mark.parametrize("exchange", [0.5, 1.0, 2.0])
def test_any_exchange_rate_as_a_search_finds_it(exponent: float, exchange: float) -> None:
    measured = of_law(exponent)
    search = minimize_scalar(
        lambda log: log + (1 + exchange) * measured.draws.law.log_steps(np.exp([log]))[0, 0],
        bounds=(-10.0, 20.0), method="bounded",
    )  # fmt: skip
    found = build("least_product", exchange=exchange)([measured])[0]
    if SIZES[0] < math.exp(search.x) < SIZES[-1]:
        assert found == pytest.approx(math.exp(search.x), rel=5e-3)
    else:
        assert found == (0.0 if search.x < 1 else math.inf)


def test_dearer_time_allows_larger_batches() -> None:
    """On the hyperbola ``r`` times ``E_min / S_min``."""
    found = [least_product(of_law().draws, exchange)[0] for exchange in (0.5, 1.0, 3.0)]
    assert found == pytest.approx([0.5 * CRITICAL, CRITICAL, 3 * CRITICAL], rel=CHORD)


@pytest.mark.parametrize(("critical", "value", "words"), [
    (0.1, 0.0, "below the smallest measured batch size, 2.01375: add smaller"),
    (1e5, math.inf, "above the largest measured batch size, 1096.63: add larger"),
    (0.8 * SIZES[0], 0.0, "below"), (1.2 * SIZES[-1], math.inf, "above"),
])  # fmt: skip
def test_beyond_the_measured_batch_sizes_it_is_open(critical: float, value: float, words: str) -> None:
    measured = of_law(critical=critical)
    assert build("least_product")([measured])[0] == value
    assert words in build("least_product").remark([measured], 0, value)


@pytest.mark.parametrize("critical", [1.1 * SIZES[0], 40.0, 0.9 * SIZES[-1]])
def test_within_them_there_is_no_remark(critical: float) -> None:
    measured = of_law(critical=critical)
    assert build("least_product")([measured])[0] == pytest.approx(critical, rel=CHORD)
    assert build("least_product").remark([measured], 0, critical) == ""


def test_ten_percent_allow_half_to_nearly_twice_on_the_hyperbola() -> None:
    """``(1 + x)(1 + 1/x) = 4.4`` at .539 and 1.856, found at the points at which curves are drawn."""
    low, high, apart = *within(of_law().draws), 1.001 * math.exp(STEP)
    assert low is not None
    assert high is not None
    assert 0.539 <= low / CRITICAL < 0.539 * apart
    assert 1.856 / apart < high / CRITICAL <= 1.856
    assert within(of_law().draws, share=0.5)[1] > 2 * high  # type: ignore[operator]


def test_an_end_of_the_range_beyond_the_batch_sizes_is_open() -> None:
    low, high = within(of_law(critical=1.5 * SIZES[0]).draws)
    assert low is None
    assert high == pytest.approx(1.856 * 1.5 * SIZES[0], rel=0.11)
    low, high = within(of_law(critical=SIZES[-1] / 1.5).draws)
    assert low == pytest.approx(0.539 * SIZES[-1] / 1.5, rel=0.11)
    assert high is None


def test_a_range_beyond_the_measured_batch_sizes_is_known_on_its_near_side() -> None:
    low, high = within(of_law(critical=SIZES[0] / 4).draws)
    assert low is None
    assert high is not None
    assert high < SIZES[0]
    low, high = within(of_law(critical=4 * SIZES[-1]).draws)
    assert high is None
    assert low is not None
    assert low > SIZES[-1]
