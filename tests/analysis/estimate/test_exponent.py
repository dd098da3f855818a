"""The prior of an exponent: closed forms, a grid, and when it gives way."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.estimate.fitting.exponent import ALONE, SPREAD, UNLIKE, Belief, pooled
from analysis.estimate.fitting.least_squares import Exponent
from tests.references.fitting import pooled_by_grid

UNKNOWN = Exponent(0.3, math.inf)


def alike(log_exponent: float, variance: float, count: int) -> list[Exponent | None]:
    return [Exponent(log_exponent, variance)] * count


KNOWN = Exponent(0.2, 0.01)


@pytest.mark.parametrize("curves", [[], [None], [KNOWN], [None, None], [KNOWN, None, UNKNOWN]])
def test_a_curve_with_no_others_is_alone(curves: list[Exponent | None]) -> None:
    """Nor is one that has itself no free exponent, where there is another that has."""
    found = pooled(curves)
    assert len(found) == len(curves)
    for index, belief in enumerate(found):
        others = [free for place, free in enumerate(curves) if place != index]
        assert (belief is ALONE) == (KNOWN not in others)


@pytest.mark.parametrize(
    ("curves", "index"),
    [
        ([(0.1, 1e-3), (0.12, 4e-3), (0.05, 2e-3)], 0),
        ([(-0.25, 1e-3), (0.0, 1e-3), (0.2, 1e-3)], 2),
        ([(0.3, 0.2)] * 3, 1),
    ],
    ids=["alike", "unlike", "hardly known"],
)
def test_equals_the_sum_over_a_grid(curves: list[tuple[float, float]], index: int) -> None:
    belief = pooled([Exponent(*curve) for curve in curves])[index].whole
    values, variances = zip(*curves, strict=True)
    mean, spread = pooled_by_grid(list(values), list(variances), index, SPREAD, UNLIKE)
    assert float(belief.log_mean) == pytest.approx(mean, abs=2e-3)  # 20 parts against 1000
    assert math.sqrt(float(belief.variance)) == pytest.approx(spread, rel=0.02)


def test_equal_exponents_known_well_concentrate_the_belief() -> None:
    """Each at 0.1 with errors far below UNLIKE: two others say 0.1, and all three say that curves are alike."""
    whole = pooled(alike(0.1, 1e-8, 3))[0].whole
    assert whole.log_mean == pytest.approx(0.1, abs=0.001)
    assert math.sqrt(float(whole.variance)) < 0.2 * UNLIKE
    assert float(pooled(alike(0.1, 1e-8, 12))[0].whole.variance) < 0.5 * float(whole.variance)


def test_unlike_exponents_widen_it() -> None:
    """Known as well, but 0.2 apart: the spread between curves is at the end of what is held possible."""
    whole = pooled([Exponent(value, 1e-8) for value in (-0.2, 0.0, 0.2)])[1].whole
    assert whole.log_mean == pytest.approx(0.0, abs=1e-6)
    assert math.sqrt(float(whole.variance)) > 2 * UNLIKE


def test_others_that_know_nothing_leave_what_is_believed_of_any_curve() -> None:
    """To SPREAD the spread between curves of one sweep adds, half Cauchy with scale UNLIKE and cut off at 10 of it: the
    mean of its square is (10 / atan 10 - 1) UNLIKE^2."""
    whole = pooled(alike(0.4, 1e6, 3))[0].whole
    assert whole.log_mean == pytest.approx(0.0, abs=1e-5)
    assert float(whole.variance) == pytest.approx(SPREAD**2 + (10 / math.atan(10) - 1) * UNLIKE**2, rel=0.1)


def test_one_other_curve_is_worth_its_precision() -> None:
    """With everything normal for a given spread between curves, so in every part of the mixture."""
    belief = pooled([Exponent(0.0, 0.01), Exponent(0.3, 0.01)])[0]
    shift = belief.means / 0.3
    precision = SPREAD**-2 * shift / (1 - shift)
    np.testing.assert_allclose(belief.variances, 1 / (precision + SPREAD**-2) + 1 / precision - 0.01)
    assert belief.shares.sum() == pytest.approx(1.0)


def test_draws_have_the_mean_and_the_variance_of_the_mixture() -> None:
    """A draw of the exponent itself is the observation; half a million know the variance to 0.2 %."""
    belief = Belief(np.array([-0.2, 0.1]), np.array([0.01, 0.04]), np.array([0.3, 0.7]))
    drawn = belief.draws(500_000, np.random.default_rng(0))
    assert belief.whole.log_mean == pytest.approx(0.3 * -0.2 + 0.7 * 0.1)
    assert belief.whole.variance == pytest.approx(0.3 * (0.01 + 0.21**2) + 0.7 * (0.04 + 0.09**2))
    values = np.asarray(drawn.log_mean)
    assert values.mean() == pytest.approx(belief.whole.log_mean, abs=1e-3)
    assert values.var() == pytest.approx(belief.whole.variance, rel=0.01)
    assert np.mean(np.asarray(drawn.variance) == 0.01) == pytest.approx(0.3, abs=3e-3)


def test_gives_way_to_what_its_own_data_demand() -> None:
    far, near = Exponent(0.5, 0.01), Exponent(0.1, 0.01)
    assert ALONE.giving_way(far).variances == pytest.approx([0.5**2])
    for nothing in (near, None, UNKNOWN):
        assert ALONE.giving_way(nothing).variances == pytest.approx([SPREAD**2])
    mixed = Belief(np.array([-0.2, 0.4]), np.array([0.01, 0.02]), np.array([0.5, 0.5])).giving_way(far)
    assert mixed.variances == pytest.approx([0.7**2, 0.02])
