"""A number with its interval, from what was measured and its resamples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.arrays import OPEN, UNKNOWN, Quantity


def test_the_first_row_is_the_value_and_the_others_alone_are_the_interval() -> None:
    rows = np.append(1000.0, np.arange(101.0))
    found = Quantity.drawn(rows, 0.9)
    assert found.value == 1000.0
    assert found.interval == (pytest.approx(5.0), pytest.approx(95.0))


@pytest.mark.parametrize("others", [[], [1.0, math.nan, 2.0], [1.0, math.inf]])
def test_without_resamples_or_where_one_has_no_value_there_is_no_interval(others: list[float]) -> None:
    assert Quantity.drawn(np.array([3.0, *others]), 0.95) == Quantity(3.0, OPEN)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_was_not_measured_is_not_known_whatever_the_resamples(value: float) -> None:
    assert Quantity.drawn(np.array([value, 1.0, 2.0]), 0.95) is UNKNOWN


def test_a_ratio_to_what_has_no_upper_end_has_no_lower_one() -> None:
    found = Quantity(6.0, (5.0, 7.0)).over(Quantity(2.0, (1.0, None)))
    assert found.value == 3.0
    assert found.interval[0] is None
    assert found.interval[1] is not None
