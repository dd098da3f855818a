r"""Which branch to run next, or that enough were run: a group-sequential search for the factor that is lost.

A factor has recovered once its loss is shown to be at most the tolerance above that of the smallest one, and is lost
once it is shown to be more than that above it, both by t tests on paired differences. The smallest factor stands for
the best smaller one: where losses fall with the factor at first, the search is a little too generous, which the
estimate afterwards is not. Tests look after every further seed; at look n of at most N a side spends
:math:`\alpha(n/N) - \alpha((n-1)/N)` of its error with :math:`\alpha(t) = \alpha \ln(1 + (e - 1) t)` (Lan and DeMets,
"Discrete sequential boundaries for clinical trials", Biometrika 1983, which becomes Pocock's). The looks' errors are
added up and not integrated, so that a test's rate holds whatever their dependence.

The factor at which k* seems to be would take the most seeds, so those on both sides of it are tested, and the search
ends where one has recovered and one is lost that are near enough.

The variance of a difference is pooled over all factors and checkpoints that two seeds or more ran, so that one seed of
a factor may be enough; where a factor scatters far more than all others, its own noise counts alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.special import fdtrc, stdtrit

from analysis.arrays import Array
from analysis.estimate.branches.losses import BranchLosses

MOST_SEEDS = 5

_UNLIKE = 0.01
"""Probability of so much scatter, if it were that of all other branches, below which it is not."""

_NEAR = 4.0
"""A factor that is lost and one that has recovered are near enough if the one is at most this multiple of the other."""


class BranchState(StrEnum):
    """What is known of a factor."""

    RECOVERED = "recovered"
    LOST = "lost"
    OPEN = "open"
    """The next seed may tell."""
    UNTOLD = "cannot be told"
    """As many seeds as are allowed did not tell, or as likely as not would not: k* is near it."""


@dataclass(frozen=True, kw_only=True)
class NextBranches:
    """What :func:`next_branches` found.

    Attributes:
        run: places of the factors to run next, at most two; none where the search has ended.
        seed: of them, from 0.
        states: of every factor.
        between: the largest factor that has recovered and the smallest one above that is lost, ``None`` where no factor
            is: the interval of k* once the search has ended.
    """

    run: tuple[int, ...] = ()
    seed: int = 0
    states: tuple[BranchState, ...]
    between: tuple[float, float | None]


def next_branches(
    branches: BranchLosses,
    tolerance: float,
    *,
    guess: float = 1.0,
    error: float = 0.1,
    most_seeds: int = MOST_SEEDS,
    earlier: Sequence[BranchLosses] = (),
) -> NextBranches:
    """The branches of one checkpoint to run next.

    Half of ``error`` is the rate at which a factor that is lost is said to have recovered, and half the rate of the
    other mistake, for normal differences. The end misses k* by a mistake about one of the factors next to it, as those
    farther off are hardly mistaken: so ``error`` is the rate at which k* lies outside ``between``.

    Args:
        branches: all factors that may be run, and the losses so far; no row is needed for a seed that was not run.
        tolerance: above the loss of the smallest factor.
        guess: factor to begin with, such as k* of the checkpoint before.
        most_seeds: of one factor.
        earlier: other checkpoints, whose noise is taken for the same.
    """
    factors, count = branches.factors, len(branches.factors)
    noise = _noises([*earlier, branches])
    states = [BranchState.RECOVERED]
    states += [_test(branches, place, noise).state(tolerance, error / 2, most_seeds) for place in range(1, count)]
    there = ~np.isnan(branches.losses)
    first = branches.losses[there[:, 0], 0]
    for place in range(1, count):
        run = len(there) >= most_seeds and there[:most_seeds, [0, place]].all()
        if states[place] is BranchState.OPEN and (run or (len(first) > 0 and np.isposinf(first).all())):
            states[place] = BranchState.UNTOLD  # no seed is left, or nothing to compare with
    last = max(place for place, state in enumerate(states) if state is BranchState.RECOVERED)
    lost = next((place for place in range(last + 1, count) if states[place] is BranchState.LOST), count)
    between = (float(factors[last]), float(factors[lost]) if lost < count else None)
    waiting = [place for place in range(last + 1, lost) if states[place] is BranchState.OPEN]
    near = last > 0 and lost < count and factors[lost] <= _NEAR * factors[last]
    if near or not waiting:
        return NextBranches(states=tuple(states), between=between)
    untold = max((place for place in range(last + 1, lost) if states[place] is BranchState.UNTOLD), default=0)
    at = _where(factors, waiting, last, lost, untold, guess)
    for seed in range(most_seeds):
        absent = tuple(place for place in (0, at) if seed >= len(there) or not there[seed, place])
        if absent:
            return NextBranches(run=absent, seed=seed, states=tuple(states), between=between)
    raise AssertionError("a factor is open though all of its seeds were run")


def _where(factors: Array, waiting: Sequence[int], last: int, lost: int, untold: int, guess: float) -> int:
    """The factor to test next, one of ``waiting``: far enough from where k* seems to be that few seeds tell."""
    if lost < len(factors):
        wanted = math.sqrt(factors[last] * factors[lost]) if last else factors[lost] / _NEAR
        return min(waiting, key=lambda place: (round(abs(math.log(factors[place] / wanted)), 6), place))
    beyond = [place for place in waiting if place > untold]
    least = _NEAR * factors[last] if last else factors[untold] if untold else math.sqrt(2) * guess
    return next((place for place in beyond if factors[place] >= least), (beyond or waiting)[-1])


def _apart(branches: BranchLosses, place: int) -> Array:
    """Losses above that of the smallest factor, of the seeds that ran both to their end."""
    apart = branches.losses[:, place] - branches.losses[:, 0]
    return np.asarray(apart[np.isfinite(apart)])


def _noises(checkpoints: Iterable[BranchLosses]) -> Array:
    """Of every factor that two seeds or more ran at a checkpoint: logarithm over the smallest one, sum of squared
    deviations of the differences, degrees of freedom, ``[J, 3]``."""
    found = []
    for branches in checkpoints:
        logs = np.log(branches.factors / branches.factors[0])
        parts = [(logs[place], _apart(branches, place)) for place in range(1, len(logs))]
        found += [(log, ((d - d.mean()) ** 2).sum(), len(d) - 1) for log, d in parts if len(d) > 1]
    return np.array(found).reshape(-1, 3)


def _test(branches: BranchLosses, place: int, noise: Array) -> _Test:
    if np.isposinf(branches.losses[:, place]).any():
        return _Test(np.array([np.inf]), 0.0, math.inf)
    apart, log = _apart(branches, place), math.log(branches.factors[place] / branches.factors[0])
    # differences of factors that lie farther apart have the larger noise: a variance in proportion to the logarithm
    squares = noise[:, 1] * np.maximum(1.0, log / noise[:, 0])
    total, freedom = float(squares.sum()), float(noise[:, 2].sum())
    own, less = float(((apart - apart.mean()) ** 2).sum()) if len(apart) > 1 else 0.0, len(apart) - 1
    if less > 0 and freedom > less:
        others = max(total - own, 0.0) / (freedom - less)
        if fdtrc(less, freedom - less, own / less / others if others else math.inf) < _UNLIKE:
            total, freedom = own, float(less)
    return _Test(apart, total / freedom if freedom else math.nan, freedom)


@dataclass(frozen=True)
class _Test:
    """Paired differences at the present look, variance of one and its degrees of freedom, 0 where nothing is known.
    Earlier looks did not tell, or nobody would have looked again."""

    apart: Array
    variance: float
    freedom: float

    def state(self, tolerance: float, level: float, most: int) -> BranchState:
        count = len(self.apart)
        if not count:
            return BranchState.OPEN
        mean, reach = float(self.apart.mean()), self._reach(level, most, count)
        if mean - reach > tolerance:
            return BranchState.LOST
        if mean + reach <= tolerance:
            return BranchState.RECOVERED
        if count >= most:
            return BranchState.UNTOLD
        if self.freedom < 2:
            return BranchState.OPEN
        # as likely as not the mean stays: would all seeds that are allowed tell then?
        told = abs(mean - tolerance) > self._reach(level, most, most)
        return BranchState.OPEN if told else BranchState.UNTOLD

    def _reach(self, level: float, most: int, look: int) -> float:
        """How far a limit lies from the mean at a look; infinity without noise."""
        if not self.freedom or math.isinf(self.freedom):
            return 0.0 if self.freedom else math.inf
        freedom = self.freedom + look - len(self.apart)
        now, before = (math.log1p((math.e - 1) * min(place / most, 1.0)) for place in (look, look - 1))
        spent = max(level * (now - before), 1e-12)
        return math.sqrt(self.variance / look) * float(-stdtrit(freedom, spent))
