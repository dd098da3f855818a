"""Up to which batch size the loss at a budget is as good as the best one, from the draws of the losses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from analysis.arrays import UNKNOWN, Quantity
from analysis.estimate.margin import Standing, Standings, largest_within, standings
from analysis.estimate.objective import Losses
from cbs.trial.store import finite_or_none

MOST_SEEDS = 1000

_STEP = 0.05
"""Spacing in ln B at which curves are compared with their best."""

_NOISY = 3.0
"""Possible savings of a learning rate in between, in standard deviations of the mean, up to which they are noise
themselves, which further seeds would reduce."""


@dataclass(frozen=True, kw_only=True)
class Excess(Quantity):
    """Difference between the loss at a batch size and the best one of all, in the unit of the metric.

    Attributes:
        standing: how it compares with the margin; unknown, too, if the noise is unknown, or the best learning rate is
            at the edge of the grid.
        more_seeds: number of further seeds at every batch size that should decide it; ``None`` if it is decided, if
            seeds alone do not decide it, or if their scatter is unknown.
    """

    standing: Standing = Standing.UNKNOWN
    more_seeds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """Comparison of the batch sizes of one optimizer at one budget.

    Attributes:
        excesses: excess of every batch size, in order.
        best: the batch size with the smallest loss, with the smallest and the largest one that may have it; an end is
            open if that is the smallest or the largest one that was run, because one beyond may be better.
        largest_within: the largest batch size whose loss is at most the margin above the smallest of those that were
            run; no value, or an open end, if this includes the largest batch size; unknown if a loss is a bound.
        largest_equal, smallest_worse: the largest batch size that is shown to be within the margin, and the smallest
            one above the best that is shown not to be; ``None`` if there is none.
    """

    excesses: tuple[Excess, ...] = field(repr=False)
    best: Quantity = UNKNOWN
    largest_within: Quantity = UNKNOWN
    largest_equal: int | None = None
    smallest_worse: int | None = None


def equivalence(found: Losses, margin: float, confidence: float) -> Equivalence:
    """Compare all batch sizes, in increasing order, with the best of them.

    Those whose loss is a bound, because the best learning rate is at the edge of the grid, are left out of the
    comparisons. Any of them may be better than the best of the others, so that nothing is called equal, no largest size
    is named, and excesses are open above.

    Args:
        found: the losses.
        margin: largest excess that counts as equal.
        confidence: two-sided confidence; each kind of error has half of the remaining probability.
    """
    kept, excesses = np.flatnonzero(~found.edges), [Excess() for _ in found.sizes]
    bounds = len(kept) < len(found.sizes)
    if not len(kept):
        return Equivalence(excesses=tuple(excesses))
    here, values = found.sizes[kept], found.values[kept] - found.values[kept].min()
    if not len(found.drawn):
        for at, value in zip(kept, values, strict=True):
            excesses[at] = Excess(float(value))
        best, within = Quantity(float(here[values.argmin()])), _largest(found, margin, confidence).value
        return Equivalence(excesses=tuple(excesses), best=best, largest_within=Quantity(None if bounds else within))
    told = standings(found.drawn[:, kept], margin, confidence)
    for place, at in enumerate(kept):
        standing, more = told.standings[place], None
        if bounds and standing is Standing.EQUAL:
            standing = Standing.UNKNOWN
        elif standing is Standing.UNKNOWN and not bounds:
            more = _more_seeds(found, told, kept, place, margin, confidence)
        ends = float(told.low[place]), None if bounds else float(told.high[place])
        excesses[at] = Excess(float(values[place]), ends, standing=standing, more_seeds=more)
    perhaps = np.concatenate([here[told.may_be_best], found.sizes[found.edges]])
    first, last = float(perhaps.min()), float(perhaps.max())
    equal = [int(found.sizes[at]) for at in kept if excesses[at].standing is Standing.EQUAL]
    above = zip(here[told.best + 1 :], told.standings[told.best + 1 :], strict=True)
    worse = [int(size) for size, each in above if each is Standing.WORSE]
    ends_of_best = (
        first if first > found.sizes.min() or first == 1 else None,
        last if last < found.sizes.max() else None,
    )
    return Equivalence(
        excesses=tuple(excesses),
        best=Quantity(float(here[told.best]), ends_of_best),
        largest_within=UNKNOWN if bounds else _largest(found, margin, confidence),
        largest_equal=max(equal, default=None),
        smallest_worse=min(worse, default=None),
    )


def _largest(found: Losses, margin: float, confidence: float) -> Quantity:
    """Return the largest batch size within the margin of the best one that was run.

    The least of several noisy losses is too low, and so is a drawn loss where the draw has its least. The best one is
    therefore drawn by its probability, apart from the loss it is given.
    """
    kept = ~found.edges
    logs = np.log(found.sizes[kept])
    if len(logs) < 2:
        return UNKNOWN
    places = np.unique(np.append(np.arange(float(logs[0]), float(logs[-1]), _STEP), logs))
    losses = found.drawn[:, kept] if len(found.drawn) else found.values[None, kept]
    best_of_another = np.roll(losses.argmin(axis=1), len(losses) // 2)
    within = largest_within(places, found.at(places), margin, losses[np.arange(len(losses)), best_of_another])
    tail = 0.5 - confidence / 2
    low, value, high = np.quantile(within, [tail, 0.5, 1 - tail], method="nearest")
    value, high = (finite_or_none(float(np.exp(end))) for end in (value, high))
    return Quantity(value, (math.exp(low) if low < places[-1] else float(found.sizes[~found.edges][-1]), high))


def _more_seeds(
    found: Losses, told: Standings, kept: np.ndarray, place: int, margin: float, confidence: float
) -> int | None:
    """Return how many more seeds should move the limit of an excess that is nearer to the margin to it."""
    pair = kept[[place, told.best]]
    value = float(np.subtract(*found.values[pair]))
    half = abs(float(told.high[place] if value < margin else told.low[place]) - value)
    wanted, have = abs(margin - value), float(found.seeds[kept].min())
    by_rates = ndtri(0.5 + confidence / 2) * math.hypot(*found.between[pair] / 4)
    noisy = found.between[pair].max() <= _NOISY * found.deviation * math.sqrt((1 / found.seeds[pair]).sum())
    rest = 0.0 if noisy else min(by_rates, half) ** 2
    if not half > wanted > math.sqrt(rest):
        return None
    needed = math.ceil(have * ((half**2 - rest) / (wanted**2 - rest)) - have)
    return min(max(needed, 1), MOST_SEEDS)
