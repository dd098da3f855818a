r"""Which branch to run next, or that enough were run: a group-sequential search for the factor that is lost.

A factor has recovered once its loss is shown to be at most the tolerance above that of the smallest one, and is lost
once it is shown to be more than that above it, both by t tests on paired differences. The smallest factor stands for
the best smaller one: where losses fall with the factor at first, the search is a little too generous, which the
estimate afterwards is not. Tests look after every further seed; at look n of at most N a side spends
:math:`\alpha(n/N) - \alpha((n-1)/N)` of its error with :math:`\alpha(t) = \alpha \ln(1 + (e - 1) t)` (Lan and DeMets,
"Discrete sequential boundaries for clinical trials", Biometrika 1983, which becomes Pocock's). The looks' errors are
added up and not integrated, so that a test's rate holds whatever their dependence.

With one seed at a factor the noise is that of earlier checkpoints (:meth:`EarlierNoise.of`); where two seeds or more
scatter far more than that, their own noise counts alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from scipy.special import fdtrc, ndtri, stdtrit

from analysis.arrays import Array
from analysis.estimate.branches.losses import BranchLosses

_UNLIKE = 0.01
"""Probability of so much scatter, if it were that of earlier checkpoints, below which it is not."""

_HOPE = 0.1
"""Chance that all seeds that are allowed would tell, below which no more are run."""


class BranchState(StrEnum):
    """What is known of a factor."""

    RECOVERED = "recovered"
    LOST = "lost"
    OPEN = "open"
    """The next seed may tell."""
    UNTOLD = "cannot be told"
    """As many seeds as are allowed did not tell, or hardly would: k* is near it."""


@dataclass(frozen=True, kw_only=True)
class EarlierNoise:
    """Variance of what the differences to the smallest factor have of one seed, by factor, at earlier checkpoints, and
    its degrees of freedom."""

    variance: Mapping[float, float] = field(default_factory=dict)
    freedom: Mapping[float, float] = field(default_factory=dict)

    def of(self, factor: float, smallest: float) -> tuple[float, float]:
        """Variance and freedom; of a factor that was never run twice, those of the nearest one, times the square of the
        ratio of their logarithms over the smallest one where that is above 1. NaN and 0 without any."""
        if not self.variance:
            return math.nan, 0.0
        nearest = min(self.variance, key=lambda other: abs(math.log(other / factor)))
        farther = max(1.0, math.log(factor / smallest) / math.log(nearest / smallest))
        return self.variance[nearest] * farther**2, self.freedom[nearest]


@dataclass(frozen=True, kw_only=True)
class NextBranches:
    """What :func:`next_branches` found.

    Attributes:
        run: branches to run next, factor and seed (from 0), at most two; none where the search has ended.
        states: of every factor.
        between: the largest factor that has recovered and the smallest one above that is lost, ``None`` where no factor
            is: the interval of k* once the search has ended.
    """

    run: tuple[tuple[float, int], ...]
    states: tuple[BranchState, ...]
    between: tuple[float, float | None]


def next_branches(
    branches: BranchLosses,
    tolerance: float,
    *,
    guess: float = 1.0,
    error: float = 0.1,
    most_seeds: int = 5,
    noise: EarlierNoise | None = None,
) -> NextBranches:
    """The branches of one checkpoint to run next.

    Half of ``error`` is the rate at which a factor that is lost is said to have recovered, and half the rate of the
    other mistake, for normal differences. The end misses k* by a mistake about one of the factors next to it, as those
    farther off are hardly mistaken: so ``error`` is the rate at which k* lies outside ``between``.

    Args:
        branches: all factors that may be run, at least two, and the losses so far; no row is needed for a seed that was
            not run, and nothing at all at the beginning.
        tolerance: above the loss of the best smaller factor.
        guess: factor to begin with, such as k* of the checkpoint before.
        most_seeds: of one factor.
        noise: of earlier checkpoints.
    """
    factors, count = branches.factors, len(branches.factors)
    noise = noise or EarlierNoise()
    side = error / 2
    first = BranchState.RECOVERED
    states = [first] + [_state(branches, place, tolerance, side, most_seeds, noise) for place in range(1, count)]
    last = max(place for place, state in enumerate(states) if state is BranchState.RECOVERED)
    lost = next((place for place in range(last + 1, count) if states[place] is BranchState.LOST), count)
    between = (float(factors[last]), float(factors[lost]) if lost < count else None)
    waiting = [place for place in range(last + 1, lost) if states[place] is BranchState.OPEN]
    if not waiting:
        return NextBranches(run=(), states=tuple(states), between=between)
    begun = [place for place in waiting if np.isfinite(branches.losses[:, place]).any()]
    untouched = last == 0 and lost == count
    centre = float(np.log(guess)) if untouched else (last + lost) / 2
    at = (
        begun[0]
        if begun
        else min(waiting, key=lambda place: abs((math.log(factors[place]) if untouched else place) - centre))
    )
    there = ~np.isnan(branches.losses)
    for seed in range(most_seeds):
        absent = [place for place in (0, at) if seed >= len(there) or not there[seed, place]]
        if absent:
            return NextBranches(
                run=tuple((float(factors[place]), seed) for place in absent), states=tuple(states), between=between
            )
    raise AssertionError("a factor is open though all of its seeds were run")


def noise_of(checkpoints: list[BranchLosses]) -> EarlierNoise:
    """The noise of checkpoints, pooled over them, of factors that two seeds or more ran at one of them."""
    sums: dict[float, float] = {}
    freedom: dict[float, float] = {}
    for branches in checkpoints:
        for place, factor in enumerate(branches.factors.tolist()):
            apart = branches.losses[:, place] - branches.losses[:, 0]
            apart = apart[np.isfinite(apart)]
            if place and len(apart) > 1:
                sums[factor] = sums.get(factor, 0.0) + float(((apart - apart.mean()) ** 2).sum())
                freedom[factor] = freedom.get(factor, 0.0) + len(apart) - 1
    return EarlierNoise(variance={factor: sums[factor] / freedom[factor] for factor in sums}, freedom=freedom)


def _state(
    branches: BranchLosses, place: int, tolerance: float, side: float, most: int, noise: EarlierNoise
) -> BranchState:
    """The state of a factor that is not the smallest one."""
    losses = branches.losses
    if np.isposinf(losses[:, place]).any():
        return BranchState.LOST
    apart = losses[:, place] - losses[:, 0]
    apart = apart[np.isfinite(apart)]
    test = _Test(apart, *_noise(apart, *noise.of(float(branches.factors[place]), float(branches.factors[0]))))
    reach = test.reach(side, most)
    if test.mean - reach > tolerance:
        return BranchState.LOST
    if test.mean + reach <= tolerance:
        return BranchState.RECOVERED
    return BranchState.OPEN if test.may_tell(tolerance, side, most) else BranchState.UNTOLD


@dataclass(frozen=True)
class _Test:
    """Paired differences at the present look. Earlier looks did not tell, or nobody would have looked again."""

    apart: Array
    variance: float
    freedom: float

    @property
    def mean(self) -> float:
        return float(self.apart.mean()) if len(self.apart) else 0.0

    def reach(self, level: float, most: int, look: int = 0) -> float:
        """How far a limit lies from the mean, now or at another ``look``; infinity without noise."""
        count = look or len(self.apart)
        if not (count and self.freedom):
            return math.inf
        freedom = self.freedom + count - len(self.apart)
        return math.sqrt(self.variance / count) * float(-stdtrit(freedom, _spent(level, count, most)))

    def may_tell(self, tolerance: float, level: float, most: int) -> bool:
        """Whether further seeds have a chance to tell, if the noise is what it seems and the mean within it."""
        count = len(self.apart)
        if count >= most or not count or self.freedom < 2:
            return count < most
        moves = math.sqrt(self.variance * (1 / count - 1 / most))
        return abs(self.mean - tolerance) - self.reach(level, most, most) > float(ndtri(_HOPE)) * moves


def _noise(apart: Array, known: float, freedom: float) -> tuple[float, float]:
    """Variance of one difference and its degrees of freedom, of which there are 0 where nothing is known."""
    count, own = len(apart), float(np.var(apart, ddof=1)) if len(apart) > 1 else math.nan
    if count < 2:
        return known, freedom
    if not freedom or float(fdtrc(count - 1, freedom, own / known if known else math.inf)) < _UNLIKE:
        return own, count - 1.0
    return (freedom * known + (count - 1) * own) / (freedom + count - 1), freedom + count - 1


def _spent(level: float, look: int, most: int) -> float:
    """What is spent at a look."""
    now, before = (math.log1p((math.e - 1) * min(place / most, 1.0)) for place in (look, look - 1))
    return max(level * (now - before), 1e-12)
