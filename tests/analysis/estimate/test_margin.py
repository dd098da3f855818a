"""Conditions that are equal to the best, worse, or neither, from both sides; and the largest within a margin."""

import math

import numpy as np
import pytest

from analysis.estimate.comparison import Standing, Standings, largest_within, standings

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


def test_one_beyond_one_that_is_not_told_is_not_called_equal() -> None:
    found = told([1.0, 1.0, 1.009, 1.0, 1.0], 0.001)
    assert found.standings[2] is OPEN
    assert EQUAL not in (found.standings[2:] if found.best < 2 else found.standings[:3])


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


def test_a_curve_that_is_never_within_gives_the_first_place() -> None:
    assert largest_within(np.arange(3.0), np.ones((1, 3)), 0.5, np.zeros(1)).tolist() == [0.0]
    assert largest_within(np.arange(3.0), np.array([[-1.0, 1.0, 3.0]]), 0.0, np.zeros(1)).tolist() == [0.5]
