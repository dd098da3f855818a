r"""Draws of several optimizers that may be compared draw by draw, and what their difference is.

Runs of one seed begin alike and see the same examples, whatever the optimizer, and two optimizers may be slowed by it
alike (:func:`alike`). Their draws have in common what the runs of a seed share; in the part of the rows in which they
are not alike, those of all but the first are put in another order. Answers of one optimizer, to several targets, belong
together and have the same order. Nothing else that compares optimizers shuffles.

Which conditions are as good as the best, and how far a curve stays within a margin of its least value, by draws.

The excess of a condition is :math:`y_k - \min_j y_j`, of an objective of which less is better. It is below a margin if
:math:`y_k - y_j` is for every j. A condition is therefore equal to the best if every one of these differences is shown
to be below the margin, each at the level of one side of the interval (an intersection-union test, which needs no
correction for the number of differences; Berger 1982). It is above the margin if one of the differences is, so the
lower limits hold for all of them jointly (Hsu 1984, "Constrained simultaneous confidence intervals for multiple
comparisons with the best"): the quantile is that of the largest of the standardised deviations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.special import ndtri

from analysis.estimate.definitions import CurveSample, build
from analysis.estimate.draws import Draws, Levels
from analysis.estimate.estimates import known_value
from analysis.estimate.result import Answer
from analysis.quantities import Array, Quantity
from cbs.trial.store import finite_or_none

_DOUBT = 1.0  # Degrees of freedom of seeds at which half of a correlation is believed


def together(answers: Sequence[Answer]) -> list[Draws | None]:
    """Return the draws of every answer, in such an order that the same row of all may be compared; ``None`` where an
    answer has none."""
    orders = zip(answers, _orders(answers), strict=True)
    return [None if answer.draws is None else answer.draws.taken(rows) for answer, rows in orders]


def critical_sizes(answers: Sequence[Answer]) -> list[Array]:
    """Return the critical batch size of every answer by the chosen definition on every draw of :func:`together`, shape
    ``[R]`` each; 0, infinity or NaN as :class:`~analysis.estimate.definitions.Definition` describes, and all NaN
    without draws."""
    found = []
    for answer, draws, rows in zip(answers, together(answers), _orders(answers), strict=True):
        if draws is None or answer.hyperbola is None:
            found.append(np.full(len(rows), np.nan))
            continue
        one = answer.hyperbola.curve.mapped(lambda values, rows=rows: values[rows])
        definition = build(answer.critical.definition, **answer.critical.options)
        values = definition([CurveSample(draws, one, known_value(answer.target))])
        # a law over several targets has no value at one of them
        found.append(answer.critical.drawn[rows] if np.isnan(values).all() else values)
    return found


def _orders(answers: Sequence[Answer]) -> list[np.ndarray]:
    """Return the order of every answer's draws: that of the first optimizer is kept."""
    optimizers = list(dict.fromkeys(id(answer.group) for answer in answers))
    orders = []
    for answer in answers:
        index, count = optimizers.index(id(answer.group)), answer.config.resamples
        orders.append(
            shuffled(answers[0].draws, answer.draws, count, [answer.config.seed, index]) if index else np.arange(count)
        )
    return orders


def shuffled(first: Draws | None, other: Draws | None, count: int, seed: Sequence[int]) -> np.ndarray:
    """Return an order of the draws of another optimizer in which those stay in place that the two have in common."""
    order = np.arange(count)
    apart = np.random.default_rng(seed).permutation(count)[round(alike(first, other) * count) :]
    order[np.sort(apart)] = apart
    return order


def alike(first: Draws | Levels | None, other: Draws | Levels | None) -> float:
    """Return how far what a seed's runs share is the same for two optimizers, from 0 to 1.

    It is the correlation of the deviations from the means over seeds, at batch sizes and seeds that both have, over the
    share of them that is common to the runs of a seed; less, the fewer seeds there are to tell. Seeds that help one and
    harm the other count as strangers.
    """
    if first is None or other is None or not min(first.shared, other.shared) > 0:
        return 0.0
    _, *sizes = np.intersect1d(first.batch_sizes, other.batch_sizes, return_indices=True)
    _, *seeds = np.intersect1d(first.labels, other.labels, return_indices=True)
    one, two = (
        each.table[np.ix_(*at)] for each, at in zip((first, other), zip(sizes, seeds, strict=True), strict=True)
    )
    known = (np.isfinite(one) & np.isfinite(two)).all(axis=1)
    if not known.any() or one.shape[1] < 2:
        return 0.0
    one, two = (table[known] - table[known].mean(axis=1, keepdims=True) for table in (one, two))
    spread = math.sqrt(float((one**2).sum() * (two**2).sum()) * first.shared * other.shared)
    freedom = one.shape[1] - 1
    found = float((one * two).sum()) / spread if spread > 0 else 0.0
    return min(max(found, 0.0), 1.0) * freedom / (freedom + _DOUBT)


def correlated(first: Array, other: Array, correlation: float, seed: Sequence[int]) -> np.ndarray:
    """Return an order of the ``other`` draws, ``[R]``, in which they have this correlation with the ``first``, as two
    normal deviates have it (Iman and Conover 1982, "A distribution-free approach to inducing rank correlation among
    input variables")."""
    ranks = first.argsort(kind="stable").argsort(kind="stable")
    normal = ndtri((ranks + 0.5) / len(first))
    own = np.random.default_rng(seed).standard_normal(len(first))
    order = np.empty(len(first), dtype=int)
    order[(correlation * normal + math.sqrt(1 - correlation**2) * own).argsort(kind="stable")] = other.argsort(
        kind="stable"
    )
    return order


@dataclass(frozen=True, kw_only=True)
class Difference(Quantity):
    """The difference of two quantities that were drawn together: the median of its draws, and its interval.

    Attributes:
        probability: that the first is the larger; equal draws count half. ``None`` without draws.
    """

    probability: float | None = None

    @property
    def ratio(self) -> Quantity:
        """The ratio of the two, if these are logarithms."""
        return self.mapped(math.exp)


def difference(first: Array, second: Array, confidence: float) -> Difference:
    """Return the difference of two conditions from the draws of both, shape ``[R]``.

    Draws may be infinite, without a bound on that side. Where both are alike infinite their difference may be anything,
    so it counts at both ends of the interval. Draws of NaN, for no value, are left out.
    """
    known = ~(np.isnan(first) | np.isnan(second))
    if not known.any():
        return Difference()
    first, second = first[known], second[known]
    with np.errstate(invalid="ignore"):
        apart = first - second
    ranks = [0.5 - confidence / 2, 0.5, 0.5 + confidence / 2]
    least, most = (
        np.quantile(np.where(np.isnan(apart), anything, apart), ranks, method="nearest")
        for anything in (-np.inf, np.inf)
    )
    middle = (least[1] + most[1]) / 2 if np.isfinite([least[1], most[1]]).all() else math.nan
    value, low, high = map(finite_or_none, (middle, least[0], most[2]))
    equal = float((first == second).mean())
    return Difference(value=value, interval=(low, high), probability=float((first > second).mean()) + equal / 2)


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
    for index in range(count) if count > 1 else ():
        apart = drawn[:, [index]] - np.delete(drawn, index, axis=1)
        high[index] = max(0.0, float(np.quantile(apart, 1 - tail, axis=0).max()))
        # two conditions may be drawn alike, and 0 would divide
        middle, spread = apart.mean(axis=0), np.maximum(apart.std(axis=0), 1e-300)
        farthest, one_sided = np.quantile(((apart - middle) / spread).min(axis=1), [tail, 2 * tail])
        low[index] = max(0.0, float((middle + farthest * spread).max()))
        may_be_best[index] = (middle + one_sided * spread).max() <= 0
    high, best = np.maximum(high, low), int(np.median(drawn, axis=0).argmin())
    found = [Standing.WORSE if each > margin else Standing.UNKNOWN for each in low]
    for side in (range(best, count), range(best, -1, -1)):
        for index in side:
            if not high[index] < margin:
                break
            found[index] = Standing.EQUAL
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
