"""Local critical batch sizes from losses of branches: the published rule to the digit, ours against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.estimate.branches.losses import BranchLosses
from analysis.estimate.branches.paired import LentNoise, local_factor, noise_to_borrow, paired_means
from analysis.estimate.branches.published import published, smoothed
from analysis.estimate.branches.sequential import BranchState, next_branches
from analysis.extensions.theory.noisy_quadratic import NoisyQuadratic
from analysis.extensions.theory.noisy_quadratic.modes import modes_of
from benchmarks.branching_truth import FACTORS, TRUNKS, Trunk, coverage, sequential, worlds
from cbs.errors import DataError

NAN, INF = math.nan, math.inf


def table(*rows: tuple[float, ...], factors: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)) -> BranchLosses:
    return BranchLosses(np.array(factors), np.array(rows))


LITTLE_NOISE = table(*((0.0, 1e-4 * seed) for seed in range(4)), factors=(1.0, 2.0))


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


def test_of_several_seeds_the_published_rule_takes_the_mean() -> None:
    rows = (3.0, 3.02, 3.5, 4.0), (3.0, 2.99, 3.5, 4.0)
    assert published(table(*rows))[0] == published(table(*rows, (3.0, 9.0, 2.0, NAN)))[0] == 2.0


def test_a_table_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="increase"):
        table((1.0, 2.0), factors=(2.0, 1.0))
    with pytest.raises(DataError, match="shape"):
        table((1.0, 2.0), factors=(1.0, 2.0, 3.0))


def test_a_difference_has_the_t_interval_of_its_pairs_whatever_all_branches_of_a_seed_share() -> None:
    rng = np.random.default_rng(0)
    own, shared = 0.01 * rng.standard_normal((4, 3)), 5.0 * rng.standard_normal((4, 1))
    branches = table(*(own + shared + [0.0, 0.02, 0.1]).tolist(), factors=(1.0, 2.0, 4.0))
    found = paired_means(branches, 40_000, 0)
    apart = branches.losses[:, 2] - branches.losses[:, 0]
    assert found.means[2] - found.means[0] == pytest.approx(apart.mean())
    half = 3.18245 * apart.std(ddof=1) / 2.0  # t with 3 degrees of freedom
    drawn = np.quantile(found.drawn[:, 2] - found.drawn[:, 0], [0.025, 0.975])
    assert drawn == pytest.approx([apart.mean() - half, apart.mean() + half], rel=0.05)


def test_seeds_that_ran_some_factors_only_are_compared_by_what_they_share() -> None:
    seeds = np.array([[0.0], [7.0], [-3.0]])
    losses = seeds + np.array([1.0, 1.5, 2.5, 4.0])
    losses[0, 3] = losses[1, 0] = losses[2, 1] = NAN
    found = paired_means(table(*losses.tolist()), 100, 0)
    assert np.diff(found.means) == pytest.approx([0.5, 1.0, 1.5])
    assert np.ptp(found.drawn - found.means, axis=1).max() < 1e-9


def test_factors_that_no_seed_joins_are_not_compared() -> None:
    branches = table((1.0, 1.1, NAN, NAN), (NAN, NAN, 1.2, NAN), (1.0, 1.2, NAN, INF))
    assert branches.usable.tolist() == [True, True, False, False]
    assert not table((NAN, NAN, NAN, NAN)).usable.any()


def test_one_seed_has_no_interval_unless_noise_is_lent() -> None:
    branches = table((1.0, 1.001, 1.02, 1.5))
    bare = local_factor(paired_means(branches, 200, 0), 0.01, 0.95)
    assert bare.factor.value == pytest.approx(3.0, rel=0.2)
    assert bare.factor.interval == (None, None)
    other = table((1.0, 1.003, 1.02, 1.5), (1.0, 1.001, 1.03, 1.5))
    lent = noise_to_borrow([branches, other])
    assert np.isfinite(lent.variance).all()
    own = paired_means(other, 0, 0).variance
    assert lent.variance == pytest.approx(own.max() * 4 / 3), "with the third that all four factors share"
    assert lent.freedom == 3.0
    found = paired_means(branches, 200, 0, lent)
    low, high = local_factor(found, 0.01, 0.95).factor.interval
    assert found.borrowed.all()
    assert low is not None
    assert high is not None
    assert low < 3.0 < high
    assert np.isnan(noise_to_borrow([branches]).variance).all()


def test_two_seeds_borrow_the_noise_of_many_checkpoints() -> None:
    """Their own t has one degree of freedom: 12.7 deviations to either side."""
    rng = np.random.default_rng(0)
    checkpoints = [table(*(0.003 * rng.standard_normal((2, 4)) + [0, 0, 0.01, 0.1]).tolist()) for _ in range(20)]
    lent = noise_to_borrow(checkpoints)
    assert lent.freedom == 60.0
    spreads = []
    for branches in checkpoints:
        found = paired_means(branches, 4000, 0, lent)
        assert found.borrowed.all()
        spreads.append(np.ptp(np.quantile(found.drawn[:, 3] - found.drawn[:, 0], [0.025, 0.975])))
    least = 2 * 2.0 * 0.003  # of the exact normal interval of a difference of two means of two
    assert least < min(spreads) <= max(spreads) < 4 * least
    assert not paired_means(checkpoints[0], 10, 0, noise_to_borrow(checkpoints[:0])).borrowed.any()


def test_noise_that_two_factors_share_half_of_is_lent_whole() -> None:
    """The deviation of a difference comes back as that of two factors together."""
    rng = np.random.default_rng(0)
    branches = BranchLosses(np.array([1.0, 2.0]), rng.standard_normal((400, 2)) + 50 * rng.standard_normal((400, 1)))
    assert noise_to_borrow([branches]).variance == pytest.approx(1.0, rel=0.2)


def test_a_factor_that_one_seed_ran_is_not_taken_for_exact() -> None:
    rows = [(1.0, 1.001, 1.02, NAN), (1.0, 1.002, 1.03, NAN), (1.0, 1.002, 1.01, 1.011)]
    branches = table(*rows)
    found = paired_means(branches, 2000, 0, noise_to_borrow([branches]))
    assert found.borrowed.tolist() == [False, False, False, True]
    spread = (found.drawn[:, 3] - found.drawn[:, 0]).std()
    assert spread > 0.5 * (found.drawn[:, 2] - found.drawn[:, 0]).std() > 0


@pytest.mark.parametrize(
    ("losses", "beyond"), [((1.0, 1.0, 1.001, 1.002), "above"), ((1.0, 1.02, 1.03, 1.04), "below")]
)
def test_beyond_the_factors_there_is_no_value(losses: tuple[float, ...], beyond: str) -> None:
    rng = np.random.default_rng(0)
    rows = np.array(losses) + 1e-4 * rng.standard_normal((4, 4))
    found = local_factor(paired_means(table(*rows.tolist()), 400, 0), 0.01, 0.95)
    assert (found.factor.value, found.beyond) == (None, beyond)
    low, high = found.factor.interval
    assert (high is None) == (beyond == "above")
    assert (low is None) == (beyond == "below")


def test_a_factor_that_lost_does_not_hide_a_larger_one_that_did_not() -> None:
    rng = np.random.default_rng(0)
    rows = np.array([1.0, 1.02, 1.003, 1.05]) + 1e-4 * rng.standard_normal((4, 4))
    found = local_factor(paired_means(table(*rows.tolist()), 400, 0), 0.01, 0.95)
    assert found.factor.value is not None
    assert 4.0 < found.factor.value < 8.0


def test_the_excess_is_that_over_the_best_smaller_factor() -> None:
    rng = np.random.default_rng(0)
    rows = np.array([1.02, 1.0, 1.005, 1.015]) + 1e-4 * rng.standard_normal((4, 4))
    found = local_factor(paired_means(table(*rows.tolist()), 400, 0), 0.01, 0.95)
    assert found.factor.value is not None
    assert 4.0 < found.factor.value < 8.0
    assert [each.value for each in found.excess] == pytest.approx([0.0, 0.0, 0.005, 0.015], abs=2e-4)


def test_where_the_next_factor_diverged_anything_up_to_it_is_possible() -> None:
    rows = [(1.0, 1.001, 1.002, INF), (1.1, 1.1015, 1.102, INF), (1.2, 1.2005, 1.202, 1.3)]
    branches = table(*rows)
    assert branches.diverged.tolist() == [False, False, False, True]
    found = local_factor(paired_means(branches, 1000, 0), 0.01, 0.95, diverged=8.0)
    low, high = found.factor.interval
    assert found.factor.value == pytest.approx(math.sqrt(32), rel=0.1)
    assert low is not None
    assert high is not None
    assert 4.0 <= low < 4.5
    assert 7.0 < high < 8.0
    alone = local_factor(
        paired_means(table((1.0, INF, INF, INF), (1.1, INF, INF, INF)), 100, 0), 0.01, 0.95, diverged=2.0
    )
    assert (alone.factor.value, alone.beyond) == (None, "below")
    assert alone.factor.interval[1] == pytest.approx(2.0, rel=0.05)


def test_expected_losses_of_the_benchmark_are_those_of_the_closed_form() -> None:
    """From rest, and against branches that were run."""
    trunk = Trunk(name="momentum", lr=0.02, momentum=0.9, window=640)
    h, start = trunk.curvature, (np.linspace(1.0, 2.0, 60), np.zeros(60))
    model = NoisyQuadratic(curvature=h, noise=h, start=start[0] ** 2, count=np.ones(60))
    modes = modes_of(model, "heavy_ball", 0.02 * math.sqrt(2.0), 0.9)
    exact = np.array([modes.loss(steps, 32) for steps in (15, 17, 18, 20)]).mean()  # after 3/4, 7/8 and all of 20 steps
    assert trunk.expected(start, 2.0, 640.0) == pytest.approx(float(exact), rel=1e-6)
    truth, losses = worlds(TRUNKS[1], 50, 40)
    rows = losses.reshape(-1, len(FACTORS))
    exact = np.interp(np.log(FACTORS), np.log(truth.factors), truth.excess)
    apart = rows - rows[:, [0]]
    assert np.abs(apart.mean(axis=0) - exact).max() < 5 * (apart.std(axis=0) / math.sqrt(len(rows))).max() + 2e-4


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
    first, *_, last = sequential(trunk, tolerance, 12)
    assert first["wrong"] == last["wrong"] == 0
    assert first["branches"] < 20
    assert last["branches"] < 20


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


def test_where_the_smallest_factor_diverged_the_search_ends() -> None:
    """There is nothing to compare with, on some seeds or on all."""
    answer = next_branches(table((INF, 0.0, 0.1, NAN)), 0.01)
    assert not answer.run
    assert answer.states[1:] == (BranchState.UNTOLD,) * 3
    rows = [(INF if seed == 0 else 0.0, 0.01 + 0.02 * (-1) ** seed, NAN, NAN) for seed in range(5)]
    assert next_branches(table(*rows), 0.01, most_seeds=5).states[1] is not BranchState.OPEN


def test_lent_noise_does_not_hang_together_from_one_part_of_the_window_to_the_other() -> None:
    own = table((0.0, 0.01, 0.02, 0.05), (0.0, 0.02, 0.02, 0.03), (0.1, 0.1, 0.15, 0.13))
    whole, half = (paired_means(own, 500, 3, LentNoise(1e-4, 5.0), part=part).drawn for part in (0, 1))
    np.testing.assert_array_equal(whole, half)
    one = table((0.0, 0.01, 0.02, 0.05))
    whole, half = (paired_means(one, 500, 3, LentNoise(1e-4, 5.0), part=part).drawn for part in (0, 1))
    assert abs(np.corrcoef(whole[:, 0] - whole[:, 1], half[:, 0] - half[:, 1])[0, 1]) < 0.3


def test_losses_that_determine_no_noise_have_no_interval() -> None:
    """A second seed that ran one factor only fixes its own effect: nothing is left over, whatever the noise is."""
    one = table((0.0, 0.01, 0.02, 0.05), (0.3, NAN, NAN, NAN))
    assert np.isnan(noise_to_borrow([one]).variance).all()
    assert not len(paired_means(one, 50, 0).drawn)
