"""Least squares of many small problems inside a box: the minimum of each, at a bound where it lies beyond."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.estimate.fitting.least_squares import Normal, minimized, regression

X = np.linspace(0.0, 2.0, 6)
TRUTH = np.array([[2.0, -1.0], [0.5, 0.7], [3.0, 0.0]])


def exponentials(asked: list[int]) -> Normal:
    """``a exp(b x)`` through points that lie on it; ``asked`` collects how many problems every call is for."""
    y = TRUTH[:, :1] * np.exp(TRUTH[:, 1:] * X)

    def normal(theta: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        asked.append(len(rows))
        rise = np.exp(theta[:, 1:] * X)
        left = y[rows] - theta[:, :1] * rise
        slopes = np.stack([rise, theta[:, :1] * X * rise], axis=-1)
        return (left**2).sum(axis=1), -np.einsum("rnp,rn->rp", slopes, left), slopes.swapaxes(1, 2) @ slopes

    return normal


def test_every_problem_ends_at_its_own_minimum_and_is_then_left_alone() -> None:
    asked: list[int] = []
    start = np.tile([1.0, 0.1], (3, 1))
    found, cost = minimized(exponentials(asked), start, np.array([[-np.inf, -5.0], [np.inf, 5.0]]), steps=100)
    assert found == pytest.approx(TRUTH, abs=1e-8)
    assert cost == pytest.approx(0.0, abs=1e-15)
    assert asked[0] == 3
    assert asked[-1] < 3
    assert (start == [1.0, 0.1]).all()


def test_what_has_not_converged_within_the_steps_is_where_they_ended() -> None:
    start, box = np.tile([1.0, 0.1], (3, 1)), np.array([[-np.inf, -5.0], [np.inf, 5.0]])
    costs = [minimized(exponentials([]), start, box, steps=steps)[1] for steps in (1, 2, 100)]
    begun = exponentials([])(start, np.arange(3))[0]
    assert (costs[0] <= begun).all()
    assert (costs[1] <= costs[0]).all()
    assert (costs[2] < costs[1]).all()
    found, cost = minimized(exponentials([]), start, box, steps=2)
    assert cost == pytest.approx(exponentials([])(found, np.arange(3))[0])


def test_a_minimum_beyond_a_bound_is_looked_for_along_it_and_equal_bounds_hold() -> None:
    box = np.array([[0.0, 0.2], [10.0, 0.2]])
    found, cost = minimized(exponentials([]), np.tile([1.0, 0.2], (3, 1)), box, steps=100)
    assert (found[:, 1] == 0.2).all()
    rise = np.exp(0.2 * X)
    y = TRUTH[:, :1] * np.exp(TRUTH[:, 1:] * X)
    assert found[:, 0] == pytest.approx(y @ rise / (rise @ rise), rel=1e-8)
    assert cost == pytest.approx(((y - found[:, :1] * rise) ** 2).sum(axis=1))


def test_a_regression_is_linear_least_squares_with_its_weights() -> None:
    design, weights = np.stack([np.ones_like(X), X], axis=-1), np.array([1.0, 3.0, 0.5, 2.0, 1.0, 4.0])
    rows = np.random.default_rng(0).standard_normal((3, len(X)))
    normal = regression(lambda at: (at @ design.T, np.broadcast_to(design, (len(at), *design.shape))), rows, weights)
    found, cost = minimized(normal, np.zeros((3, 2)), np.array([[-9.0, -9.0], [9.0, 9.0]]), steps=50)
    expected, *_ = np.linalg.lstsq(design * weights[:, None] ** 0.5, (rows * weights**0.5).T, rcond=None)
    assert found == pytest.approx(expected.T, abs=1e-8)
    assert cost == pytest.approx(((rows - found @ design.T) ** 2 * weights).sum(axis=1))
