"""Local critical batch sizes from losses of branches: the published rule to the digit, ours against closed forms."""

import math
from fractions import Fraction

import numpy as np
import pytest

from analysis.estimate.best_rate import AtBest
from analysis.estimate.objective import Scale
from benchmarks.branching_truth import FACTORS, TRUNKS, Trunk, coverage, sequential, worlds
from extensions.branching.factors import (
    BranchLosses,
    FactorCurve,
    LocalFactor,
    end_mean,
    factor_curve,
    local_factor,
    published,
    recovery,
    smoothed,
)
from extensions.branching.sequential import BracketedFactor, BranchState, next_branches

NAN, INF = math.nan, math.inf


def table(*rows: tuple[float, ...], factors: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)) -> BranchLosses:
    return BranchLosses(np.array(factors), np.array(rows))


LITTLE_NOISE = table(*((0.0, 1e-4 * seed) for seed in range(4)), factors=(1.0, 2.0))


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


def test_losses_are_smoothed_with_half_of_the_weight_on_the_newest() -> None:
    assert smoothed([4.0]) == 4.0
    assert smoothed([4.0, 2.0, 1.0]) == 0.5 * 1.0 + 0.25 * 2.0 + 0.25 * 4.0
    assert math.isnan(smoothed([]))


@pytest.mark.parametrize(
    ("losses", "largest", "point", "interval"),
    [
        ((3.000, 3.004, 3.0099, 3.0101), 4.0, math.sqrt(32), (4.0, 8.0)),
        # every smaller k counts, not the first alone
        ((3.010, 3.000, 3.0105, 3.0300), 2.0, math.sqrt(8), (2.0, 4.0)),
        # one that fails does not end it: the largest that holds does
        ((3.000, 3.020, 3.009, 3.030), 4.0, math.sqrt(32), (4.0, 8.0)),
        ((3.000, 2.990, 2.985, 2.980), 8.0, None, (8.0, None)),
        ((3.000, 3.011, 3.020, INF), 1.0, math.sqrt(2), (1.0, 2.0)),
        ((3.000, NAN, 3.020, 3.030), None, None, (None, None)),
    ],
)
def test_the_published_rule_on_tables_made_by_hand(
    losses: tuple[float, ...], largest: float | None, point: float | None, interval: tuple[float | None, float | None]
) -> None:
    found, plotted = published(table(losses))
    assert found == largest
    assert plotted.value == point
    assert plotted.interval == interval


def curve_of(
    *rows: tuple[float, ...], lenders: tuple[FactorCurve, ...] = (), draws: int = 1000, unit: float = 0.1
) -> FactorCurve:
    """Draws of the losses of factors 1, 2, 4 ..., a row per seed."""
    losses = np.array(rows)
    nothing = np.full(len(losses), NAN)
    found = [AtBest(values=column / unit, floors=nothing, ceilings=nothing) for column in losses.T]
    return factor_curve(2.0 ** np.arange(losses.shape[1]), found, Scale(0.0, unit), draws, 0, lenders)


def seeds_of(losses: tuple[float, ...], deviation: float, common: float = 0.0) -> list[tuple[float, ...]]:
    rng = np.random.default_rng(0)
    noise = deviation * rng.standard_normal((4, len(losses))) + common * rng.standard_normal((4, 1))
    return [tuple(row) for row in (np.array(losses) + noise).tolist()]


def within(curve: FactorCurve, tolerance: float = 0.01, diverged: float | None = None) -> LocalFactor:
    return local_factor(curve, tolerance, 0.95, diverged)


def width(found: LocalFactor) -> float:
    low, high = found.factor.interval
    return math.log(high / low)


def test_what_all_branches_of_a_seed_share_costs_nothing() -> None:
    losses = (1.0, 1.003, 1.008, 1.023, 1.064)
    quiet, shared, strange = (
        within(curve_of(*seeds_of(losses, *noise))) for noise in ((0.001, 0.0), (0.001, 0.01), (0.01, 0.0))
    )
    assert quiet.factor.value == pytest.approx(4.5, rel=0.15)
    assert width(shared) < 2 * width(quiet)
    assert width(strange) > 2 * width(shared)


def test_seeds_that_ran_some_factors_only_are_compared_by_what_they_share() -> None:
    losses = np.array([[0.0], [0.1], [-0.1], [0.05]]) + np.array([1.0, 1.02, 1.08, 1.3])
    losses[0, 3] = losses[1, 0] = losses[2, 1] = NAN
    found = within(curve_of(*losses.tolist()), 0.05)
    assert 2.0 < found.factor.value < 4.0
    assert width(found) < 1.0


def test_one_seed_has_the_noise_of_other_checkpoints() -> None:
    losses = (1.0, 1.001, 1.02, 1.5)
    loud, quiet = (curve_of(*seeds_of((1.0, 1.003, 1.02, 1.5), noise, 0.02)) for noise in (0.006, 0.0006))
    assert quiet.freedom == 12
    assert loud.apart == pytest.approx(0.006, rel=0.6)
    one = curve_of(losses, lenders=(loud,))
    assert one.lent
    assert not curve_of(losses).lent
    assert width(within(one)) > 1.25 * width(within(curve_of(losses, lenders=(quiet,))))
    assert not curve_of(*seeds_of(losses, 0.001), lenders=(loud,)).lent, "has enough of its own"


@pytest.mark.parametrize(
    ("losses", "beyond"), [((1.0, 1.0, 1.001, 1.002), "above"), ((1.0, 1.02, 1.03, 1.04), "below")]
)
def test_beyond_the_factors_there_is_no_value(losses: tuple[float, ...], beyond: str) -> None:
    found = within(curve_of(*seeds_of(losses, 1e-4)))
    assert (found.factor.value, found.beyond) == (None, beyond)
    low, high = found.factor.interval
    assert (high is None) == (beyond == "above")
    assert (low is None) == (beyond == "below")


def test_two_windows_are_compared_as_far_as_their_noise_goes_together() -> None:
    losses = (1.0, 1.003, 1.008, 1.023, 1.064)
    alike, other = seeds_of(losses, 0.002), list(reversed(seeds_of(losses, 0.002)))
    whole = (within(curve_of(*alike)), curve_of(*alike))
    ratio = recovery(whole, whole, 0.95, 0)
    assert ratio.value == 1.0
    assert ratio.interval == pytest.approx((1.0, 1.0))
    low, high = recovery(whole, (within(curve_of(*other)), curve_of(*other)), 0.95, 0).interval
    assert low < 0.95 < 1.05 < high


@pytest.mark.parametrize(("shift", "mistake"), [(1e-9, BranchState.RECOVERED), (-1e-9, BranchState.LOST)])
def test_the_error_rate_of_the_search_is_as_stated(shift: float, mistake: BranchState) -> None:
    """Where it is hardest: the excess is the tolerance but for rounding."""
    rng, wrong, runs, error = np.random.default_rng(1), 0, 300, 0.2
    for _ in range(runs):
        truth = rng.standard_normal((5, 1)) + np.array([0.0, 0.01 + shift]) + 0.003 * rng.standard_normal((5, 2))
        branches = BranchLosses(np.array([1.0, 2.0]), np.full((5, 2), NAN))
        while (answer := next_branches(branches, 0.01, error=error)).run:
            branches.losses[answer.seed, answer.run] = truth[answer.seed, answer.run]
        wrong += answer.states[1] is mistake
    assert 0 < wrong < runs * (error / 2) + 2.6 * math.sqrt(runs * 0.1 * 0.9)


def test_noise_of_all_branches_saves_seeds_and_is_dropped_where_it_is_too_small() -> None:
    factors = np.array([1.0, 2.0, 4.0])
    earlier = [BranchLosses(factors, np.array([[0.0, 0.001, NAN], [1.0, 1.002, NAN], [2.0, 2.0, NAN]]))]
    one = BranchLosses(factors, np.array([[0.0, 0.001, 0.5]]))
    assert next_branches(one, 0.05, earlier=earlier).states[1:] == (BranchState.RECOVERED, BranchState.LOST)
    assert next_branches(one, 0.05).states[1:] == (BranchState.OPEN, BranchState.OPEN)
    exact = [BranchLosses(factors, np.array([[0.0, 1e-6 * row, 2e-6 * row] for row in range(9)]))]
    two = BranchLosses(factors, np.array([[0.0, 0.04, NAN], [0.0, 0.0, NAN]]))
    assert next_branches(two, 0.05, earlier=exact).states[1] is BranchState.OPEN
    # a factor farther from the smallest one is taken to scatter more: its variance is in proportion to the logarithm
    close = BranchLosses(factors, np.array([[0.0, 0.04, NAN]]))
    far = BranchLosses(factors, np.array([[0.0, NAN, 0.04]]))
    assert next_branches(close, 0.05, earlier=earlier, most_seeds=9).states[1] is BranchState.RECOVERED
    assert next_branches(far, 0.05, earlier=earlier, most_seeds=9).states[2] is not BranchState.RECOVERED


def test_the_search_asks_for_pairs_on_both_sides_of_the_guess() -> None:
    """Factors so far from k* that one seed tells, where the noise is known; at most a factor of 4 apart at the end."""
    branches, known = BranchLosses(FACTORS, np.full((5, 7), NAN)), [LITTLE_NOISE]
    truth, asked = 0.01 * (FACTORS / 3.0) ** 2, []
    while (answer := next_branches(branches, 0.01, guess=1.5, earlier=known)).run:
        branches.losses[answer.seed, answer.run] = truth[list(answer.run)]
        asked.append((answer.seed, answer.run))
    assert asked == [(0, (0, 4)), (0, (2,))]
    assert answer.between == (1.0, 4.0)
    assert next_branches(BranchLosses(FACTORS, np.full((0, 7), NAN)), 0.01, guess=4.5).run == (0, 5)
    assert BranchState.LOST is next_branches(table((0.0, 0.0, INF, NAN)), 0.01).states[2]


@pytest.mark.parametrize(
    ("losses", "asked"),
    [
        ((0.0, NAN, NAN, 0.0, NAN, NAN, NAN), 5),  # all recovered: four times the largest
        ((0.0, NAN, NAN, 0.0, NAN, 0.0, NAN), 6),
        ((0.0, NAN, NAN, 1.0, NAN, NAN, NAN), 1),  # lost: a quarter of the smallest
        ((0.0, NAN, 1.0, NAN, NAN, NAN, NAN), 1),  # that the smallest one recovered is no finding
        ((0.0, 0.0, NAN, NAN, NAN, NAN, 1.0), 3),  # between the two: the middle
        ((0.0, 0.0, NAN, 1.0, NAN, NAN, NAN), None),
        ((0.0, NAN, NAN, NAN, NAN, NAN, 0.0), None),
    ],
)
def test_the_factor_that_is_tested_next(losses: tuple[float, ...], asked: int | None) -> None:
    answer = next_branches(BranchLosses(FACTORS, np.array([losses])), 0.01, earlier=[LITTLE_NOISE])
    assert answer.run == (() if asked is None else (asked,))


@pytest.mark.parametrize(
    ("recovered", "lost", "said"),
    [(1, 4, "between 1 and 4"), (4, None, "above 4"), (0.5, 2, "below 2"), (0.5, None, "not known")],
)
def test_a_test_says_where_it_leaves_the_factor(recovered: float, lost: float | None, said: str) -> None:
    found = BracketedFactor(
        optimizer="adamw", examples=1000, recovered=Fraction(recovered), lost=None if lost is None else Fraction(lost),
        untold=(), branches=7, done=True, losses=BranchLosses(np.array([1.0]), np.zeros((1, 1))),
    )  # fmt: skip
    assert found.line(Fraction(1, 2)) == f"adamw at 1,000: k* {said} (7 branches)"


@pytest.mark.parametrize(
    ("trunk", "wanted"),
    [
        pytest.param(TRUNKS[0], 0.7, marks=pytest.mark.slow),
        (TRUNKS[1], 1.7),
        pytest.param(TRUNKS[2], 5.0, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_interval_holds_the_true_factor(trunk: Trunk, wanted: float) -> None:
    found = coverage(trunk, 50, wanted, 3, 40)
    assert abs(found["bias"]) < 0.1
    assert found["coverage"] >= 0.85  # 34 of 40; with 95 % less has a probability of 1 %
    assert worlds(trunk, 50, 40)[0].factor(found["tolerance"]) == pytest.approx(wanted, rel=1e-3)


def test_the_search_brackets_the_true_factor_for_fewer_branches() -> None:
    trunk = TRUNKS[1]
    tolerance = worlds(trunk, 50, 40)[0].tolerance(2.4)
    first, *_, last = sequential(trunk, tolerance, 6)
    assert first["wrong"] == last["wrong"] == 0
    assert first["branches"] < 20
    assert last["branches"] < 20
