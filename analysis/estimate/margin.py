r"""Which conditions are as good as the best, and how far a curve stays within a margin of its least value, by draws.

The excess of a condition is :math:`y_k - \min_j y_j`, of an objective of which less is better. It is below a margin if
:math:`y_k - y_j` is for every j. A condition is therefore equal to the best if every one of these differences is shown
to be below the margin, each at the level of one side of the interval (an intersection-union test, which needs no
correction for the number of differences; Berger 1982). It is above the margin if one of the differences is, so the
lower limits hold for all of them jointly (Hsu 1984, "Constrained simultaneous confidence intervals for multiple
comparisons with the best"): the quantile is that of the largest of the standardised deviations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis.arrays import Array


class Standing(StrEnum):
    """How the objective of one condition compares with the best one."""

    EQUAL = "equal"
    WORSE = "worse"
    UNKNOWN = "cannot be told"
    """Neither is shown."""


@dataclass(frozen=True, kw_only=True)
class Standings:
    """Comparison of the conditions with the best of them, in their order.

    Attributes:
        best: index of the best condition by the median of the draws.
        low, high: limits of the excess of every condition, at least 0, shape ``[M]``.
        may_be_best: whether a condition may be the best, with the whole error probability on that side, shape ``[M]``.
        standings: of every condition.
    """

    best: int
    low: Array
    high: Array
    may_be_best: np.ndarray
    standings: tuple[Standing, ...]


def standings(drawn: Array, margin: float, confidence: float) -> Standings:
    """Compare conditions, in the order of an axis such as the batch size, with the best of them.

    A condition beyond one that is not shown to be equal, as seen from the best, is not called equal.

    Args:
        drawn: draws of the objective, shape ``[R, M]``.
        margin: largest excess that counts as equal.
        confidence: two-sided confidence; each kind of error has half of the remaining probability.
    """
    tail, count = 0.5 - confidence / 2, drawn.shape[1]
    low, high, may_be_best = np.zeros(count), np.zeros(count), np.ones(count, dtype=bool)
    for place in range(count) if count > 1 else ():
        apart = drawn[:, [place]] - np.delete(drawn, place, axis=1)
        high[place] = max(0.0, float(np.quantile(apart, 1 - tail, axis=0).max()))
        middle, spread = apart.mean(axis=0), np.maximum(apart.std(axis=0), 1e-300)
        farthest, one_sided = np.quantile(((apart - middle) / spread).min(axis=1), [tail, 2 * tail])
        low[place] = max(0.0, float((middle + farthest * spread).max()))
        may_be_best[place] = (middle + one_sided * spread).max() <= 0
    high, best = np.maximum(high, low), int(np.median(drawn, axis=0).argmin())
    found = [Standing.WORSE if each > margin else Standing.UNKNOWN for each in low]
    for side in (range(best, count), range(best, -1, -1)):
        for place in side:
            if not high[place] < margin:
                break
            found[place] = Standing.EQUAL
    return Standings(best=best, low=low, high=high, may_be_best=may_be_best, standings=tuple(found))


def largest_within(places: Array, curves: Array, margin: float, least: Array | None = None) -> Array:
    """Return the largest place at which each curve is at most a margin above its least value, between the places along
    straight lines, shape ``[R]``; infinite for a curve that ends within the margin.

    This is also the largest place within the margin of the least value at or before it, which is the same above the
    place of the least value.

    Args:
        places: for example ln of batch sizes, increasing, shape ``[G]``.
        curves: values there, shape ``[R, G]``.
        margin: at least 0.
        least: what to compare with in place of each curve's least value, shape ``[R]``; a curve that is never within
            the margin of it gives the first place.
    """
    above = curves - (curves.min(axis=1) if least is None else least)[:, None] - margin
    last = len(places) - 1 - (above[:, ::-1] <= 0).argmax(axis=1)
    never, row = (above > 0).all(axis=1), np.arange(len(above))
    after = np.minimum(last + 1, len(places) - 1)
    rise = above[row, after] - above[row, last]
    share = np.where(rise > 0, -above[row, last] / np.where(rise > 0, rise, 1.0), 0.0)
    within = np.where(last == len(places) - 1, math.inf, places[last] + share * (places[after] - places[last]))
    return np.where(never, places[0], within)
