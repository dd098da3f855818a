"""The 95 % interval of the critical batch size holds the truth 95 times in 100 and is no wider than it must be; the
test of fit rejects 1 in 100.

Each synthetic sweep draws its own truth: 5 to 9 batch sizes, a critical batch size anywhere between the second smallest
and the second largest, 3-15 % seed noise of which 30-90 % is common to the learning rates of a seed, a best learning
rate that follows a power of the batch size and falls anywhere between the points of a factor-2 grid, pruning at 1.3.
The exponent is given, or drawn from the prior.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chi2

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import EXCESS_RMS, LACK_OF_FIT, Doubts
from analysis.estimate.fitting import Fit, fit_curve, free_exponent, interval
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.exponent import ALONE, SPREAD, Belief, pooled
from analysis.estimate.fitting.misfit import Misfit
from analysis.estimate.fitting.quality import leave_one_out
from tests.factories import Truth, tables

LRS = tuple(1e-5 * 2.0**power for power in range(16))
MIN_STEPS = 175.0
PRUNE_FACTOR = 1.3


@dataclass(frozen=True)
class Drawn:
    """A sweep and its truth."""

    critical: float
    exponent: float
    sizes: list[int]
    tables: list[Trials]

    def fit(self, resamples: int, seed: int, belief: Belief = ALONE) -> Case:
        return Case(
            self,
            fit_curve(self.sizes, self.tables, belief=belief, config=AnalysisConfig(resamples=resamples, seed=seed)),
        )


@dataclass(frozen=True)
class Case:
    """A fitted sweep."""

    drawn: Drawn
    fit: Fit

    def ends(self, what: str = "critical") -> tuple[float | None, float | None]:
        return interval(getattr(self.fit.resampled, what), 0.95)

    @property
    def power_ends(self) -> tuple[float | None, float | None]:
        """What the critical batch size would be known to without other forms of the curve."""
        return interval(self.fit.resampled_power.critical, 0.95)

    def holds(self, what: str = "critical") -> bool:
        """Whether the interval holds the truth."""
        truth = {
            "critical": self.drawn.critical,
            "min_steps": MIN_STEPS,
            "exponent": self.drawn.exponent,
            "examples_at_critical": 2 * MIN_STEPS * self.drawn.critical,
        }[what]
        low, high = self.ends(what)
        return (low is None or low <= truth) and (high is None or truth <= high)

    @property
    def distance(self) -> float | None:
        """Of the power law's estimate from the truth, in half widths of its interval, all in logarithms; ``None`` where
        open."""
        low, high = self.power_ends
        if low is None or high is None:
            return None
        error = math.log(float(self.fit.power.critical) / self.drawn.critical)
        return error / (0.5 * math.log(high / low))

    @property
    def misfit(self) -> Misfit | None:
        return self.fit.misfit


def draw(seeds: int, index: int, *, censored: str = "", mixed: bool = False, exponent: float | None = 1.0) -> Drawn:
    """A sweep of so many seeds.

    Args:
        censored: ``"smallest"``, ``"largest"`` or ``"both"``: trials at this batch size stop at a budget between 26 %
            below and 22 % above the true curve there, so that none, some or all of them reach the target.
        mixed: whether every batch size has its own number of seeds, up to ``seeds``.
        exponent: of the true curve; ``None`` draws it.
    """
    rng = np.random.default_rng([seeds, index])
    count = int(rng.integers(5, 10))
    factor = 4 if count <= 6 and rng.random() < 0.5 else 2
    smallest = 2 ** int(rng.integers(0, 3))
    sizes = np.array([smallest * factor**power for power in range(count)])
    critical = math.exp(rng.uniform(math.log(sizes[1]), math.log(sizes[-2])))
    truth = Truth(
        min_steps=MIN_STEPS,
        min_examples=MIN_STEPS * critical,
        noise=rng.uniform(0.03, 0.15),
        common=rng.uniform(0.3, 0.9),
        curvature=rng.uniform(0.2, 0.8),
        lr_at_1=1e-4 * 2.0 ** rng.uniform(0, 1),
        lr_power=rng.uniform(0.3, 1.0),
        lr_max=2e-2,
    )
    truth = dataclasses.replace(truth, exponent=exponent or math.exp(SPREAD * rng.standard_normal()))
    found = tables(truth, sizes.tolist(), seeds, lrs=LRS, prune_factor=None, seed=index)
    if mixed:
        found = [table[:, : rng.integers(1, seeds + 1)] for table in found]
    places = {"": [], "smallest": [0], "largest": [count - 1], "both": [0, count - 1]}[censored]
    budgets = np.full(count, math.inf)
    for place in places:
        curve = MIN_STEPS * (1 + (critical / sizes[place]) ** truth.exponent)
        budgets[place] = curve * math.exp(rng.uniform(-0.3, 0.2))
    whole = [stopped(table, budget) for table, budget in zip(found, budgets, strict=True)]
    return Drawn(critical, truth.exponent, sizes.tolist(), whole)


def case(
    seeds: int, index: int, *, censored: str = "", mixed: bool = False, exponent: float | None = 1.0,
    resamples: int = 1000,
) -> Case:  # fmt: skip
    """:func:`draw`, fitted."""
    return draw(seeds, index, censored=censored, mixed=mixed, exponent=exponent).fit(resamples, index)


@functools.cache
def hyperbolas(seeds: int) -> list[Case]:
    """50 sweeps on which coverage and false alarms are counted alike."""
    return [case(seeds, index, resamples=300) for index in range(50)]


def stopped(steps: np.ndarray, budget: float) -> Trials:
    """Steps to target with a budget and pruning, and the bounds of what was stopped."""
    reached = np.where(steps > budget, np.inf, steps)
    limit = np.minimum(budget, PRUNE_FACTOR * reached.min(axis=0))
    hit = reached <= limit
    return Trials.of(np.where(hit, steps, np.nan), np.where(hit, np.nan, np.broadcast_to(limit, steps.shape)))


def suspected(found: Case) -> bool:
    """Whether one batch size is said to decide."""
    doubts = Doubts(left_out=leave_one_out(found.fit, found.drawn.tables), ends=found.ends())
    return doubts.decisive() is not None


def rejected(found: Case) -> bool:
    """Whether the points are said to be off the curve; with or without it being the verdict."""
    assert found.misfit is not None
    return found.misfit.probability < LACK_OF_FIT


OF_SEEDS = pytest.mark.parametrize("seeds", [3, *(pytest.param(seeds, marks=pytest.mark.slow) for seeds in (1, 2, 5))])


@OF_SEEDS
def test_coverage(seeds: int) -> None:
    """50 hyperbolas: were the coverage only 92 %, fewer than 42 hits would have probability 0.02; at 80 %, 0.69."""
    assert sum(entry.holds() for entry in hyperbolas(seeds)) >= 42


def width(count: int, first: int) -> float:
    """Mean square of the distances from the truth in standard deviations, 1 at its nominal value, of sweeps whose
    exponents are drawn from the prior."""
    distances = [case(3, first + index, exponent=None, resamples=150).distance for index in range(count)]
    bounded = [distance for distance in distances if distance is not None]
    assert len(bounded) >= 0.95 * count
    return float(np.mean(np.square(bounded))) * 1.96**2


SWEEPS = 60
BAND = tuple(chi2.ppf([0.001, 0.999], SWEEPS) / SWEEPS)
"""What such a mean of normal distances leaves with probability 0.002: 0.53 to 1.66. An interval 1.7 times as wide in
its logarithm divides it by 2.9, one 0.6 times as wide by 0.36, so neither stays inside."""


def test_the_interval_is_as_wide_as_it_has_to_be_and_no_wider() -> None:
    measured = width(SWEEPS, 50_000)
    assert BAND[0] <= measured <= BAND[1]
    assert measured / 1.7**2 < BAND[0]
    assert measured / 0.6**2 > BAND[1]


def test_other_forms_cost_a_hyperbola_a_quarter_at_most() -> None:
    """Geometric mean over 50 sweeps; with the power law alone believed it would be 1."""
    pairs = [(entry.ends(), entry.power_ends) for entry in hyperbolas(3)]
    closed = [[math.log(high / low) for low, high in pair] for pair in pairs if None not in (*pair[0], *pair[1])]  # type: ignore[operator]
    assert len(closed) >= 45
    wide, alone = np.mean(np.log(closed), axis=0)
    assert 1.1 < math.exp(wide - alone) < 1.3


def together(index: int, exponents: tuple[float, ...]) -> list[Case]:
    """Curves of one sweep at one target, each with what the others say of its exponent."""
    drawn = [draw(3, 60_000 + 10 * index + place, exponent=each) for place, each in enumerate(exponents)]
    free = [free_exponent(each.sizes, each.tables) for each in drawn]
    return [each.fit(300, index, belief) for each, belief in zip(drawn, pooled(free), strict=True)]


def narrowing(pairs: list[tuple[Case, Case]]) -> float:
    """Geometric mean of the widths of the intervals with the others, over those alone."""
    ratios = []
    for pair in pairs:
        ends = [case.power_ends for case in pair]
        if all(None not in end for end in ends):
            shared, alone = (math.log(high / low) for low, high in ends)  # type: ignore[operator]
            ratios.append(math.log(shared / alone))
    assert len(ratios) >= 0.9 * len(pairs)
    return math.exp(float(np.mean(ratios)))


def test_curves_of_one_sweep_help_each_other_and_still_hold_the_truth() -> None:
    """Three curves with the exponent 0.95: intervals are narrower by at least 10 %. 18 of them; fewer than 14 hits
    have probability 0.002 at 95 %, and 0.36 at 78 %."""
    pairs = [(each, each.drawn.fit(300, index)) for index in range(6) for each in together(index, (0.95,) * 3)]
    assert narrowing(pairs) < 0.9
    assert sum(shared.holds() for shared, _ in pairs) >= 14


@pytest.mark.slow
def test_curves_with_unlike_exponents_in_one_sweep_hold_the_truth_each() -> None:
    """0.8, 1 and 1.2 beside each other, 12 sweeps: at 95 % fewer than 9 of 12 have probability 0.002 for each; fewer
    than 29 of 36, 0.001."""
    hits = np.array([[each.holds() for each in together(index, (0.8, 1.0, 1.2))] for index in range(12)])
    assert hits.sum(axis=0).min() >= 9
    assert hits.sum() >= 29


@pytest.mark.slow
def test_coverage_with_censored_ends() -> None:
    """16 sweeps of up to five seeds that differ between batch sizes: were the coverage only 92 %, fewer than 12 hits
    would have probability 0.007; at 75 %, 0.37."""
    ends = ("smallest", "largest")
    hits = [case(2 + i % 4, i, censored=ends[i // 4 % 2], mixed=True, resamples=200).holds() for i in range(16)]
    assert sum(hits) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("censored", ["smallest", "largest"])
def test_coverage_with_a_censored_end_of_many_sweeps(censored: str) -> None:
    """100 sweeps: were the coverage only 92 %, fewer than 86 hits would have probability 0.01; at 80 %, 0.92."""
    hits = [case(2 + index % 4, index, censored=censored, mixed=True, resamples=400).holds() for index in range(100)]
    assert sum(hits) >= 86


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_coverage_of_many_sweeps(seeds: int) -> None:
    """400 hyperbolas, standard error 1.4 % at 92 % and 0.7 % at 98 %: 92-98 %, two of them allowed."""
    coverage = np.mean([case(seeds, 10_000 + index).holds() for index in range(400)])
    assert 0.92 - 0.028 <= coverage <= 0.98 + 0.014


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.7, 0.85, 1.0, 1.2])
def test_coverage_of_300_sweeps_at_an_exponent(exponent: float, capsys: pytest.CaptureFixture[str]) -> None:
    """300 sweeps of 1 to 5 seeds, standard error 1.6 % at 92 % and 0.8 % at 98 %: 92-98 %, two of them allowed; at 0.7,
    2.4 spreads of the belief away, above 88 %."""
    cases = [case(1 + index % 5, 25_000 + index, exponent=exponent) for index in range(300)]
    shares = {what: np.mean([entry.holds(what) for entry in cases]) for what in ("critical", "exponent", "min_steps")}
    with capsys.disabled():
        print(f"\nexponent {exponent}: " + ", ".join(f"{what} {share:.3f}" for what, share in shares.items()))
    assert (0.92 if exponent > 0.8 else 0.88) - 0.032 <= shares["critical"] <= 0.98 + 0.016


@pytest.mark.slow
def test_the_width_of_many_intervals() -> None:
    """400 sweeps: the mean has a standard error of 7 %; what differs from normal distances is allowed 10 % more."""
    assert 0.73 <= width(400, 51_000) <= 1.33


@pytest.mark.slow
@pytest.mark.parametrize(("censored", "mixed"), [("", False), ("smallest", True), ("largest", False), ("both", True)])
def test_coverage_of_300_sweeps(censored: str, mixed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The stated bar: 92-98 % of 300 sweeps of 1 to 5 seeds, standard error 1.6 % at 92 % and 0.8 % at 98 %; two of
    them allowed. Seeds differ between sweeps, or between batch sizes (``mixed``). Where the smallest batch size is cut
    short, 1,000 others gave 97.3 %."""
    cases = [case(1 + index % 5, 20_000 + index, censored=censored, mixed=mixed) for index in range(300)]
    names = ("critical", "min_steps", "exponent", "examples_at_critical")
    shares = {what: np.mean([entry.holds(what) for entry in cases]) for what in names}
    with capsys.disabled():
        print(f"\n{censored or 'all reached'}: " + ", ".join(f"{what} {share:.3f}" for what, share in shares.items()))
    assert 0.92 - 0.032 <= shares["critical"] <= 0.98 + 0.016
    # the asymptotes are those at the grid, which the truth does not know
    assert min(shares.values()) >= 0.88


@OF_SEEDS
def test_healthy_sweeps_raise_no_doubt(seeds: int) -> None:
    """50 sweeps: at the nominal 1 % more than 3 rejections have probability 0.002, and at 10 % fewer than 4, 0.25."""
    assert seeds == 1 or sum(rejected(entry) for entry in hyperbolas(seeds)) <= 3  # with one seed nothing is tested
    assert sum(suspected(entry) for entry in hyperbolas(seeds)) <= 3


@pytest.mark.slow
def test_the_rate_of_the_test_of_fit() -> None:
    """600 sweeps: 1 % has a standard error of 0.4 %, 5 % of 0.9 %; three of them, and not far below."""
    cases = [case(seeds, 30_000 + index, resamples=300) for seeds in (2, 3, 5) for index in range(200)]
    found = np.array([entry.misfit.probability for entry in cases if entry.misfit is not None])
    assert len(found) == len(cases)
    assert np.mean(found < 0.01) <= 0.022
    assert 0.02 <= np.mean(found < 0.05) <= 0.077


@pytest.mark.parametrize("exponent", [0.6, pytest.param(1.4, marks=pytest.mark.slow)])
def test_another_exponent_is_followed_not_doubted(exponent: float) -> None:
    """15 sweeps, whose points lie on their curve. At 1 % more than 2 rejections have probability 4e-4; at 88 %, fewer
    than 11 hits, 0.03, of the critical batch size and of the exponent itself."""
    cases = [case(3, 40_000 + index, exponent=exponent, resamples=300) for index in range(15)]
    assert sum(rejected(entry) for entry in cases) <= 2
    assert sum(entry.holds() for entry in cases) >= 11
    assert sum(entry.holds("exponent") for entry in cases) >= 11


def test_points_off_any_curve_are_found_out() -> None:
    """15 sweeps in which every second batch size is a fifth slower: what no smooth curve takes up."""
    found = []
    for index in range(15):
        drawn = draw(3, 45_000 + index)
        slow = [1 + 0.2 * (place % 2) for place in range(len(drawn.sizes))]
        whole = [Trials.of(table.steps * by, table.bound * by) for table, by in zip(drawn.tables, slow, strict=True)]
        entry = dataclasses.replace(drawn, tables=whole).fit(200, index)
        found.append(rejected(entry) and entry.misfit is not None and entry.misfit.excess_rms > EXCESS_RMS)
    assert np.mean(found) >= 0.6
