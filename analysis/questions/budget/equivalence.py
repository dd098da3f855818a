r"""Up to which batch size the loss at a budget is as good as the best, by tests of equivalence.

The excess of a batch size is :math:`L(B) - \min_{B'} L(B')` over the batch sizes that were run. It is below a margin if
:math:`L(B) - L(B')` is for every B', so it is called so where every one of these differences is shown to be, each at
the level of one side of the interval (an intersection-union test: no correction for how many there are; Berger 1982),
and every batch size between it and the best one is called so, too. It is above the margin if one of the differences is,
so the lower limits hold for all of them together (Hsu 1984, "Constrained simultaneous confidence intervals for multiple
comparisons with the best"): the quantile is that of the largest of the standardised deviations. A batch size may be the
best where none of these limits is above 0, with all that the confidence leaves on that one side.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.special import stdtrit

from analysis.arrays import OPEN, UNKNOWN, Array, Interval, Quantity
from analysis.estimate.objective import BestLosses

_BETWEEN = 32
"""Points between two batch sizes at which a curve through resampled losses is looked at."""

MOST_SEEDS = 1000

_NOISY = 3.0
"""Standard deviations of the mean up to which what a learning rate in between could save is itself noise, which further
seeds make smaller, too."""


class SizeStanding(StrEnum):
    """How the loss at one batch size stands to the best one."""

    EQUAL = "equal"
    WORSE = "worse"
    UNKNOWN = "cannot be told"
    """Between the two; or the noise is not known, or the best learning rate lies at the edge of the grid."""


@dataclass(frozen=True, kw_only=True)
class Excess(Quantity):
    """How far the loss at a batch size lies above the best of all, in the unit of the metric.

    Attributes:
        standing: against the margin.
        more_seeds: further seeds at every batch size after which it should be told; ``None`` where it is told already,
            where seeds alone do not, or it is not known how far they scatter.
    """

    standing: SizeStanding = SizeStanding.UNKNOWN
    more_seeds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """The batch sizes of one optimizer at one budget against one another.

    Attributes:
        excesses: of every batch size, in their order.
        best: the batch size with the least loss, with the smallest and the largest that may have it.
        largest_within: the largest batch size whose loss is at most the margin above the least, interpolated in ln B;
            ``None`` where it is that of the largest batch size, too.
        largest_equal, smallest_worse: the largest batch size that is shown to be within the margin, and the smallest
            above the best one that is shown not to be; ``None`` where there is none.
    """

    excesses: tuple[Excess, ...] = field(repr=False)
    best: Quantity
    largest_within: Quantity
    largest_equal: int | None
    smallest_worse: int | None

    @property
    def standing(self) -> dict[str, Any]:
        return {"largest_equal": self.largest_equal, "smallest_worse": self.smallest_worse}


def equivalence(sizes: Array, found: BestLosses, margin: float, bound: np.ndarray, confidence: float) -> Equivalence:
    """All batch sizes, increasing, against the best of them.

    Args:
        found: their losses.
        bound: whether the loss at the best learning rate may be any lower, because that is at the edge of the grid;
            shape ``[M]``. Such a batch size is left out of the comparisons; all that is said of it is that it may be
            the best.
        confidence: two-sided; an error of either kind is made in half of the rest.
    """
    kept = np.flatnonzero(np.logical_not(bound))
    losses, drawn = found.losses[kept], found.resampled[:, kept]
    excesses = [Excess() for _ in sizes]
    if not len(kept):
        return Equivalence(
            excesses=tuple(excesses), best=UNKNOWN, largest_within=UNKNOWN, largest_equal=None, smallest_worse=None
        )
    here, least = sizes[kept], int(losses.argmin())
    values = losses - losses[least]
    if len(drawn):
        low, high, best = _limits(losses, drawn, confidence)
        limits = low, high
        standings = _standings(low, high, margin, least)
        reach = float(stdtrit(found.freedom, 0.5 + confidence / 2))
        noise = found.deviation[kept] ** 2 / found.seeds[kept]
        for place, at in enumerate(kept):
            wide = (float(low[place]), float(high[place]))
            more = None
            if standings[place] is SizeStanding.UNKNOWN:
                side = high[place] if values[place] < margin else low[place]
                half, deviation = abs(side - values[place]), math.sqrt(noise[place] + noise[least])
                by_rates = float(found.between[kept][[place, least]].max()) > _NOISY * deviation
                of_seeds = min(reach * deviation, half) if by_rates else half
                more = _more_seeds(half, abs(margin - values[place]), of_seeds, float(found.seeds[kept].min()))
            excesses[at] = Excess(float(values[place]), wide, standing=standings[place], more_seeds=more)
        perhaps = np.concatenate([here[best], sizes[np.asarray(bound, dtype=bool)]])
        ends: Interval = (float(perhaps.min()), float(perhaps.max()))
    else:
        standings, ends, limits = [SizeStanding.UNKNOWN] * len(kept), OPEN, None
        for place, at in enumerate(kept):
            excesses[at] = Excess(float(values[place]))
    equal = [int(size) for size, each in zip(here, standings, strict=True) if each is SizeStanding.EQUAL]
    worse = [
        int(size)
        for size, each in zip(here[least + 1 :], standings[least + 1 :], strict=True)
        if each is SizeStanding.WORSE
    ]
    return Equivalence(
        excesses=tuple(excesses),
        best=Quantity(float(here[least]), ends),
        largest_within=_largest(here, values, limits, margin, least),
        largest_equal=max(equal, default=None),
        smallest_worse=min(worse, default=None),
    )


def _limits(losses: Array, drawn: Array, confidence: float) -> tuple[Array, Array, np.ndarray]:
    """Limits of the excess of every batch size, and whether it may be the best, shape ``[M]`` each: the lower ones for
    all differences together."""
    tail = 0.5 - confidence / 2
    low, high, best = np.zeros(len(losses)), np.zeros(len(losses)), np.ones(len(losses), dtype=bool)
    for place in range(len(losses)):
        others = np.arange(len(losses)) != place
        if not others.any():
            continue
        apart = drawn[:, [place]] - drawn[:, others]
        high[place] = max(0.0, float(np.quantile(apart, 1 - tail, axis=0).max()))
        middle, spread = apart.mean(axis=0), np.maximum(apart.std(axis=0), 1e-300)
        farthest, one_sided = np.quantile(((apart - middle) / spread).min(axis=1), [tail, 2 * tail])
        low[place] = max(0.0, float((middle + farthest * spread).max()))
        best[place] = (middle + one_sided * spread).max() <= 0
    return low, np.maximum(high, low), best


def _standings(low: Array, high: Array, margin: float, least: int) -> list[SizeStanding]:
    """Outwards from the best one: what lies beyond one that is not shown to be equal is not called so."""
    standings = [SizeStanding.WORSE if each > margin else SizeStanding.UNKNOWN for each in low]
    for side in (range(least, len(low)), range(least, -1, -1)):
        for place in side:
            if not high[place] < margin:
                break
            standings[place] = SizeStanding.EQUAL
    return standings


def _more_seeds(half: float, wanted: float, of_seeds: float, have: float) -> int | None:
    """How many more bring a limit ``half`` away as near as ``wanted``, all else as it is; ``of_seeds`` is the part of
    ``half`` that goes down with their number, which is ``have``."""
    rest = max(half**2 - of_seeds**2, 0.0)
    if not (half > wanted > math.sqrt(rest)):
        return None
    needed = math.ceil(have * (of_seeds**2 / (wanted**2 - rest)) - have)
    return min(max(needed, 1), MOST_SEEDS)


def _largest(sizes: Array, excess: Array, limits: tuple[Array, Array] | None, margin: float, least: int) -> Quantity:
    """Where the excess passes the margin for the first time above the best batch size, with the batch sizes at which it
    may: from where the upper limit passes it to where the lower one does. Straight lines in ln B bend up before a
    convex curve does, monotone cubics follow it, so the one goes with the upper limit and the other with the lower."""
    logs = np.log(sizes[least:])
    if len(logs) < 2:
        return UNKNOWN
    value = _passes(logs, excess[least:], margin, smooth=True)
    if limits is None:
        return Quantity(value)
    low, high = (each[least:] for each in limits)
    first = _passes(logs, high, margin, smooth=False) if high[0] < margin else float(sizes[0])
    return Quantity(value, (first or float(sizes[-1]), _passes(logs, low, margin, smooth=True)))


def _passes(logs: Array, excess: Array, margin: float, *, smooth: bool) -> float | None:
    """The batch size at which an excess that begins below the margin passes it; ``None`` where it does not."""
    at = float(zeros(logs, excess[None] - margin, smooth=smooth)[0])
    return math.exp(at) if math.isfinite(at) else None


def zeros(logs: Array, rows: Array, *, smooth: bool) -> Array:
    """Where every row, ``[R, M]`` values at ``logs``, first rises above 0, along monotone cubics in ``logs`` or else
    straight lines, shape ``[R]``: the first of ``logs`` where it begins there, infinite where it never does."""
    fine = np.concatenate(
        [np.linspace(a, b, _BETWEEN, endpoint=False) for a, b in itertools.pairwise(logs)] + [logs[-1:]]
    )
    curves = (
        PchipInterpolator(logs, rows, axis=1)(fine) if smooth else np.array([np.interp(fine, logs, r) for r in rows])
    )
    after = (curves > 0).argmax(axis=1)
    before = np.maximum(after - 1, 0)
    low, high = (np.take_along_axis(curves, place[:, None], axis=1)[:, 0] for place in (before, after))
    share = np.where(after > 0, -low / np.where(after > 0, high - low, 1.0), 0.0)
    places = fine[before] + share * (fine[after] - fine[before])
    return np.where((curves > 0).any(axis=1), places, np.inf)
