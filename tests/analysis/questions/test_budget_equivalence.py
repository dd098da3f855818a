"""The tests of equivalence behind ``cbs budget`` from both sides: what they call equal, worse and neither."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.estimate.objective import BestLosses
from analysis.questions.budget.equivalence import MOST_SEEDS, Equivalence, SizeStanding, equivalence

SIZES = np.array([4.0, 8, 16, 32, 64])
NONE = np.zeros(5, dtype=bool)
EQUAL, WORSE, OPEN = SizeStanding.EQUAL, SizeStanding.WORSE, SizeStanding.UNKNOWN


def losses(values: object, deviation: float, *, seeds: float = 1.0, seed: int = 0, between: float = 0.0) -> BestLosses:
    means = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    drawn = means + deviation / np.sqrt(seeds) * rng.standard_normal((4000, len(means)))
    ones = np.ones(len(means))
    return BestLosses(
        losses=means, resampled=drawn, deviation=deviation * ones, freedom=1e6, seeds=seeds * ones,
        between=between * ones, luck=0 * ones,
    )  # fmt: skip


def told(found: Equivalence) -> list[SizeStanding]:
    return [each.standing for each in found.excesses]


def test_equal_worse_and_neither() -> None:
    found = equivalence(SIZES, losses([1.0, 1.0, 1.002, 1.01, 1.03], 0.001), 0.01, NONE, 0.95)
    assert told(found) == [EQUAL, EQUAL, EQUAL, OPEN, WORSE]
    assert (found.largest_equal, found.smallest_worse) == (16, 64)
    assert 16 < found.largest_within.interval[0] < 32 < found.largest_within.interval[1] < 64
    assert found.best.interval == (None, 16.0)  # a smaller one, which was not run, may be better


def test_not_finding_a_difference_is_not_equality() -> None:
    found = equivalence(SIZES, losses([1.0] * 5, 0.02), 0.01, NONE, 0.95)
    assert told(found) == [OPEN] * 5
    assert found.largest_equal is None
    assert found.best.interval == (None, None)
    assert found.largest_within.interval == (4.0, None)


def test_a_batch_size_beyond_one_that_is_not_told_is_not_called_equal() -> None:
    found = equivalence(SIZES, losses([1.0, 1.0, 1.009, 1.0, 1.0], 0.001), 0.01, NONE, 0.95)
    assert told(found)[2] is OPEN
    assert EQUAL not in told(found)[3:]


def test_the_best_may_lie_in_the_middle() -> None:
    found = equivalence(SIZES, losses([1.05, 1.003, 1.0, 1.003, 1.05], 0.0005), 0.01, NONE, 0.95)
    assert told(found) == [WORSE, EQUAL, EQUAL, EQUAL, WORSE]
    assert (found.largest_equal, found.smallest_worse) == (32, 64)
    assert found.best.interval == (16.0, 16.0)


@pytest.mark.parametrize(
    ("values", "sizes", "interval"),
    [
        ([1.0, 1.02, 1.05, 1.1, 1.2], SIZES, (None, 4.0)),
        ([1.2, 1.1, 1.05, 1.02, 1.0], SIZES, (64.0, None)),
        ([1.0, 1.02, 1.05, 1.1, 1.2], SIZES / 4, (1.0, 1.0)),  # there is none below 1
    ],
)
def test_a_best_at_an_end_leaves_that_end_open(values: list[float], sizes: np.ndarray, interval: object) -> None:
    found = equivalence(sizes, losses(values, 0.001), 0.01, NONE, 0.95)
    assert found.best.interval == interval


def test_a_bound_is_in_no_comparison() -> None:
    bound = np.array([True, False, False, False, False])
    found = equivalence(SIZES, losses([0.5, 1.0, 1.0, 1.0, 1.05], 0.0005), 0.01, bound, 0.95)
    assert told(found) == [OPEN, EQUAL, EQUAL, EQUAL, WORSE]
    assert found.excesses[0].value is None
    assert found.best.interval == (None, 32.0)  # its loss may be any lower
    nothing = equivalence(SIZES, losses([1.0] * 5, 0.001), 0.01, ~NONE, 0.95)
    assert told(nothing) == [OPEN] * 5
    assert nothing.best.value is None


def test_as_many_seeds_as_are_asked_for_are_enough() -> None:
    values = [1.0, 1.0, 1.0, 1.004, 1.05]
    found = equivalence(SIZES, losses(values, 0.006, seeds=2), 0.01, NONE, 0.95)
    more = found.excesses[3].more_seeds
    assert told(found)[3] is OPEN
    assert 2 <= more <= 30
    enough = equivalence(SIZES, losses(values, 0.006, seeds=2 + 1.6 * more), 0.01, NONE, 0.95)
    assert told(enough)[3] is EQUAL
    short = equivalence(SIZES, losses(values, 0.006, seeds=2 + 0.3 * more), 0.01, NONE, 0.95)
    assert told(short)[3] is OPEN
    on_it = equivalence(SIZES, losses([1.0, 1.0, 1.0, 1.00999, 1.05], 0.006, seeds=2), 0.01, NONE, 0.95)
    assert on_it.excesses[3].more_seeds in (None, MOST_SEEDS)


def test_seeds_are_not_asked_for_where_rates_are_what_is_not_known() -> None:
    found = equivalence(SIZES, losses([1.0, 1.0, 1.0, 1.004, 1.05], 0.0001, between=0.02), 0.01, NONE, 0.95)
    spread = losses([1.0, 1.0, 1.0, 1.004, 1.05], 0.006)
    rates = BestLosses(**{**vars(spread), "deviation": 1e-4 * np.ones(5), "between": 0.02 * np.ones(5)})
    assert told(found)[3] is EQUAL
    assert equivalence(SIZES, rates, 0.01, NONE, 0.95).excesses[3].more_seeds is None
    # of one run the noise is as large as what may lie between the rates, of the mean over nine seeds it is not
    mean = BestLosses(
        **{**vars(rates), "deviation": 3e-3 * np.ones(5), "seeds": 9 * np.ones(5), "between": 8e-3 * np.ones(5)}
    )
    assert equivalence(SIZES, mean, 0.01, NONE, 0.95).excesses[3].more_seeds is None


@pytest.mark.parametrize(("excess", "which"), [(0.0101, EQUAL), (0.0099, WORSE)])
def test_an_error_is_made_in_at_most_one_of_twenty_worlds(excess: float, which: SizeStanding) -> None:
    """The truth lies just on the other side of the margin at every batch size but one; the noise is a fifth of it."""
    truth, wrong = np.array([1.0, 1 + excess, 1 + excess, 1 + excess, 1 + excess]), 0
    for turn in range(200):
        seen = truth + 0.002 * np.random.default_rng([turn, 1]).standard_normal(5)
        found = equivalence(SIZES, losses(seen, 0.002, seed=turn), 0.01, NONE, 0.95)
        wrong += which in told(found)[1:]
    assert wrong <= 14  # of 200 at 5 %: more in one world of forty


def test_one_batch_size_and_no_noise_at_all() -> None:
    alone = equivalence(SIZES[:1], losses([1.0], 0.001), 0.01, NONE[:1], 0.95)
    assert told(alone) == [EQUAL]
    assert alone.largest_within.value is None
    quiet = BestLosses(**{**vars(losses([1.0, 1.0, 1.005, 1.02, 1.1], 0.1)), "resampled": np.empty((0, 5))})
    found = equivalence(SIZES, quiet, 0.01, NONE, 0.95)
    assert told(found) == [OPEN] * 5
    assert found.largest_within.value == pytest.approx(22, abs=3)
    assert found.largest_within.interval == (None, None)


@pytest.mark.parametrize(("apart", "may_be_best"), [(1.5, True), (1.8, False)])
def test_a_batch_size_that_may_be_the_best_errs_on_one_side_only(apart: float, may_be_best: bool) -> None:
    # two batch sizes whose difference has deviation 1: 5 % lie beyond 1.645 of it, 2.5 % beyond 1.96
    rng = np.random.default_rng(0)
    losses = np.array([apart, 0.0])
    drawn = losses + rng.standard_normal((20_000, 2)) / np.sqrt(2)
    nothing = np.zeros(2)
    found = BestLosses(
        losses=losses, resampled=drawn, deviation=np.ones(2), freedom=10.0, seeds=np.full(2, 3.0), between=nothing,
        luck=nothing,
    )  # fmt: skip
    answer = equivalence(np.array([8.0, 16.0]), found, 1e-3, np.zeros(2, dtype=bool), 0.95)
    assert answer.best.interval == ((None, None) if may_be_best else (16.0, None))
    assert answer.excesses[0].standing is SizeStanding.UNKNOWN
