"""Draws of several optimizers that may be compared draw by draw, and what their difference is.

Runs of one seed begin alike and see the same examples, whatever the optimizer, and two optimizers may be slowed by it
alike (:func:`alike`). Their draws have in common what the runs of a seed share; in the part of the rows in which they
are not alike, those of all but the first are put in another order. Answers of one optimizer, to several targets, belong
together and have the same order. Nothing else that compares optimizers shuffles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array, Quantity
from analysis.estimate.definitions import CurveSample, build
from analysis.estimate.draws import Draws
from analysis.estimate.estimates import known_value
from analysis.estimate.result import Answer
from cbs.trial.store import finite_or_none

_DOUBT = 3.0
"""Degrees of freedom of seeds at which half of a correlation is believed."""


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
        place, count = optimizers.index(id(answer.group)), answer.config.resamples
        orders.append(
            shuffled(answers[0].draws, answer.draws, count, [answer.config.seed, place]) if place else np.arange(count)
        )
    return orders


def shuffled(first: Draws | None, other: Draws | None, count: int, seed: Sequence[int]) -> np.ndarray:
    """Return an order of the draws of another optimizer in which those stay in place that the two have in common."""
    order = np.arange(count)
    apart = np.random.default_rng(seed).permutation(count)[round(alike(first, other) * count) :]
    order[np.sort(apart)] = apart
    return order


def alike(first: Draws | None, other: Draws | None) -> float:
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
