"""What is read off the record of a trial."""

import math

import numpy as np
import pytest

from cbs.trial.record import end_mean, read_off

STEPS = np.array([0.0, 2.0, 4.0, 16.0])
VALUES = np.array([9.0, 4.0, 3.0, 1.0])


@pytest.mark.parametrize(
    ("step", "value"),
    [(2.0, 4.0), (2 * math.sqrt(2), 3.5), (4.0, 3.0), (8.0, 2.0), (16.0, 1.0), (40.0, 1.0), (1.0, None)],
)
def test_a_curve_is_read_along_straight_lines_in_the_logarithm(step: float, value: float | None) -> None:
    assert read_off(STEPS, VALUES, step) == (value if value is None else pytest.approx(value))


def test_between_evaluations_that_lie_far_apart_nothing_is_known() -> None:
    assert read_off(STEPS, VALUES, 8.0, farthest=3.9) is None
    assert read_off(STEPS, VALUES, 8.0, farthest=4.0) == pytest.approx(2.0)
    assert read_off(STEPS, VALUES, 3.0, farthest=2.0) is not None
    assert read_off(STEPS, VALUES, 4.0, farthest=1.1) == 3.0
    assert read_off(STEPS, np.array([9.0, 4.0, math.nan, 1.0]), 16.0) == 1.0


def test_the_mean_over_the_last_quarter_is_that_of_straight_lines() -> None:
    examples = np.array([0.0, 75.0, 80.0, 100.0, 120.0])
    values = np.array([99.0, 4.0, 2.0, 1.0, 50.0])
    assert end_mean(examples, values, 100.0) == pytest.approx((5 * 3.0 + 20 * 1.5) / 25)
    half = np.array([0.0, 50.0, 100.0])  # at 75 in the logarithm
    start = 4.0 - 3.0 * math.log(1.5) / math.log(2)
    assert end_mean(half, np.array([9.0, 4.0, 1.0]), 100.0) == pytest.approx((start + 1.0) / 2)
    assert end_mean(np.array([0.0, 80.0, 100.0]), np.array([9.0, 2.0, 1.0]), 100.0) == pytest.approx(1.5)
    assert end_mean(np.array([0.0, 99.5]), np.array([9.0, 2.0]), 100.0) == 2.0
    assert math.isnan(end_mean(np.array([0.0]), np.array([9.0]), 100.0))
