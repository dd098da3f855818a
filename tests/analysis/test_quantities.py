"""A number with its interval, from what was measured and its resamples."""

import math

import numpy as np
import pytest
from scipy.stats import norm, t

from analysis.quantities import OPEN, UNKNOWN, Quantity, interval, pooled, widening


def test_the_first_row_is_the_value_and_the_others_alone_are_the_interval() -> None:
    rows = np.append(1000.0, np.arange(101.0))
    found = Quantity.of_draws(rows, 0.9)
    assert found.value == 1000.0
    assert found.interval == (pytest.approx(5.0), pytest.approx(95.0))


@pytest.mark.parametrize("others", [[], [1.0, math.nan, 2.0], [1.0, math.inf]])
def test_without_resamples_or_where_one_has_no_value_there_is_no_interval(others: list[float]) -> None:
    assert Quantity.of_draws(np.array([3.0, *others]), 0.95) == Quantity(3.0, OPEN)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_was_not_measured_is_not_known_whatever_the_resamples(value: float) -> None:
    assert Quantity.of_draws(np.array([value, 1.0, 2.0]), 0.95) is UNKNOWN


def test_a_ratio_to_what_has_no_upper_end_has_no_lower_one() -> None:
    found = Quantity(6.0, (5.0, 7.0)).over(Quantity(2.0, (1.0, None)))
    assert found.value == 3.0
    assert found.interval[0] is None
    assert found.interval[1] is not None


@pytest.mark.parametrize(("low", "high"), [(1.0, 5.0), (0.0, math.inf), (1.0, math.inf), (0.0, 5.0)])
def test_ends_at_nothing_or_infinity_are_open(low: float, high: float) -> None:
    values = np.array([low] * 50 + [2.0] * 100 + [high] * 50)
    assert interval(values, 0.95) == (low or None, None if high == math.inf else high)


@pytest.mark.parametrize("values", [[], [math.inf] * 100, [0.0] * 100, [1.0, math.nan, 2.0]])
def test_draws_that_bound_nothing_have_no_interval(values: list[float]) -> None:
    assert interval(np.array(values), 0.95) == (None, None)


def test_an_interval_holds_so_much_of_the_draws() -> None:
    low, high = interval(np.arange(1.0, 1002.0), 0.5)
    assert (low, high) == (pytest.approx(251, abs=1), pytest.approx(751, abs=1))


def test_an_estimated_deviation_widens_as_students_t_does() -> None:
    assert widening(5.0, 0.95) == pytest.approx(t.ppf(0.975, 5) / norm.ppf(0.975))
    assert widening(1e9, 0.8) == pytest.approx(1.0)


def test_a_falling_function_turns_the_ends_round_and_an_end_may_be_opened() -> None:
    found = Quantity(2.0, (1.0, None))
    assert found.mapped(lambda value: -value, falling=True) == Quantity(-2.0, (None, -1.0))
    assert found.mapped(lambda value: value + 1) == Quantity(3.0, (2.0, None))
    whole = Quantity(2.0, (1.0, 3.0))
    assert [whole.opened(*beyond).interval for beyond in ((0,), (1,), (-1.0,), (1, -1))] == [
        (1.0, 3.0), (None, 3.0), (1.0, None), (None, None),
    ]  # fmt: skip


def test_pooled_noise_is_that_of_every_row_around_its_own_mean() -> None:
    squares, freedom = pooled([np.array([1.0, 3.0]), np.array([10.0, 11.0, 12.0]), np.array([7.0])])
    assert (squares, freedom) == (2.0 + 2.0, 1 + 2)
    assert pooled([]) == (0.0, 0)
