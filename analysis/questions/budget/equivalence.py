r"""Up to which batch size the loss at a budget is as good as the best one, by tests of equivalence.

The excess of a batch size is :math:`L(B) - \min_{B'} L(B')` over the batch sizes that were run. It is below a margin if
:math:`L(B) - L(B')` is for every B'. A batch size is therefore called equal if every one of these differences is shown
to be below the margin, each at the level of one side of the interval (an intersection-union test, which needs no
correction for the number of differences; Berger 1982), and every batch size between it and the best one is called equal
too. The excess is above the margin if one of the differences is, so the lower limits hold for all of them jointly (Hsu
1984, "Constrained simultaneous confidence intervals for multiple comparisons with the best"): the quantile is that of
the largest of the standardised deviations. A batch size may be the best if none of these limits is above 0, with the
whole error probability on that one side.
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
"""Number of points between two batch sizes at which a curve through resampled losses is evaluated."""

MOST_SEEDS = 1000

_NOISY = 3.0
"""Possible savings of a learning rate in between, in standard deviations of the mean, up to which they are noise
themselves, which further seeds would reduce."""


class SizeStanding(StrEnum):
    """How the loss at one batch size compares with the best one."""

    EQUAL = "equal"
    WORSE = "worse"
    UNKNOWN = "cannot be told"
    """Neither is shown; or the noise is unknown, or the best learning rate is at the edge of the grid."""


@dataclass(frozen=True, kw_only=True)
class Excess(Quantity):
    """Difference between the loss at a batch size and the best one of all, in the unit of the metric.

    Attributes:
        standing: how it compares with the margin.
        more_seeds: number of further seeds at every batch size that should decide it; ``None`` if it is decided, if
            seeds alone do not decide it, or if their scatter is unknown.
    """

    standing: SizeStanding = SizeStanding.UNKNOWN
    more_seeds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """Comparison of the batch sizes of one optimizer at one budget.

    Attributes:
        excesses: excess of every batch size, in order.
        best: the batch size with the smallest loss, with the smallest and the largest one that may have it; an end is
            open if that is the smallest or the largest one that was run, because one beyond may be better.
        largest_within: the largest batch size whose loss is at most the margin above the smallest, interpolated in ln
            B; ``None`` if this includes the largest batch size.
        largest_equal, smallest_worse: the largest batch size that is shown to be within the margin, and the smallest
            one above the best that is shown not to be; ``None`` if there is none.
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
    """Compare all batch sizes, in increasing order, with the best of them.

    Args:
        sizes: batch sizes.
        found: their losses.
        margin: largest excess that counts as equal.
        bound: mask of the batch sizes whose loss at the best learning rate may be lower, because that is at the edge of
            the grid, shape ``[M]``. They are left out of the comparisons; it is only said that they may be the best.
        confidence: two-sided confidence; each kind of error has half of the remaining probability.
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
        first, last = float(perhaps.min()), float(perhaps.max())
        ends: Interval = (
            first if first > sizes.min() or first == 1 else None,
            last if last < sizes.max() else None,
        )
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
    """Return limits of the excess of every batch size, and whether it may be the best, shape ``[M]`` each; the lower
    limits hold for all differences jointly."""
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
    """Return the standings from the best batch size outwards; sizes beyond one not shown to be equal are not called
    equal."""
    standings = [SizeStanding.WORSE if each > margin else SizeStanding.UNKNOWN for each in low]
    for side in (range(least, len(low)), range(least, -1, -1)):
        for place in side:
            if not high[place] < margin:
                break
            standings[place] = SizeStanding.EQUAL
    return standings


def _more_seeds(half: float, wanted: float, of_seeds: float, have: float) -> int | None:
    """Return how many more seeds reduce a limit from ``half`` to ``wanted``, everything else unchanged; ``of_seeds`` is
    the part of ``half`` that decreases with their number, which is ``have``."""
    rest = max(half**2 - of_seeds**2, 0.0)
    if not (half > wanted > math.sqrt(rest)):
        return None
    needed = math.ceil(have * (of_seeds**2 / (wanted**2 - rest)) - have)
    return min(max(needed, 1), MOST_SEEDS)


def _largest(sizes: Array, excess: Array, limits: tuple[Array, Array] | None, margin: float, least: int) -> Quantity:
    """Return where the excess first passes the margin above the best batch size, with the range in which it may.

    The range goes from where the upper limit passes the margin to where the lower one does. Between batch sizes,
    straight lines in ln B lie above a convex curve, and monotone cubics follow it, so lines are used for the upper
    limit and cubics for the lower one.
    """
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
    """Return the batch size at which an excess that starts below the margin passes it; ``None`` if it does not."""
    at = float(zeros(logs, excess[None] - margin, smooth=smooth)[0])
    return math.exp(at) if math.isfinite(at) else None


def zeros(logs: Array, rows: Array, *, smooth: bool) -> Array:
    """Return where every row, ``[R, M]`` values at ``logs``, first rises above 0, along monotone cubics in ``logs`` or
    straight lines, shape ``[R]``: the first of ``logs`` if it starts above, infinity if it never does."""
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
