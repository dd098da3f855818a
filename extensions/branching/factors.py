r"""The local critical batch size: the largest factor of the batch size whose branches do not fall behind.

The conditions are the factors k of one checkpoint, the objective is the loss at the end of a branch at its best
learning rate. The draws of its curve (:mod:`analysis.estimate.draws`) pair the branches of a seed as far as their
losses are measured to go together, and :math:`k^*` is the largest k at which a drawn curve is within a tolerance of its
least value between the factors that were run.

Beside it stands the published rule of Merrill et al., "Critical Batch Size Revisited" (arXiv 2505.23971, sections 3 and
4): a branch trains with k times the batch size; :math:`L_k` is its training loss at the end, smoothed by an exponential
average with weight 0.5; and :math:`k^*` is the largest k with :math:`L_{k^*} \le L_k + 0.01` for all tried :math:`k <
k^*`. The interval goes from it to the next k that was tried, and the geometric mean of both is plotted. The paper has
one run of every k; here the losses are means over the seeds that ran every k.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from analysis.estimate.best_rate import AtBest
from analysis.estimate.comparison import Standing, largest_within, standings
from analysis.estimate.draws import Draws, draw
from analysis.estimate.objective import Scale
from analysis.estimate.prior import Line
from analysis.quantities import OPEN, UNKNOWN, Array, Quantity
from cbs.trial.record import read_off

# Degrees of freedom of the noise from which on a checkpoint needs none of the others, and may lend to them
ENOUGH, SOME = 8, 3

_ALIKE = 0.5  # Standard deviation of ln of the noise from one checkpoint of a run to another
SMOOTHING = 0.5  # Weight of the newest loss in the average

# Tolerance of the published rule in nats per token
TOLERANCE = 0.01


def end_mean(along: np.ndarray, values: np.ndarray, end: float) -> float:
    """Average a curve over its last quarter before a place, on straight lines between evaluations: the mean scatters
    less over seeds than the last value.

    Args:
        along: examples seen at every evaluation, increasing and at least to the end.
        values: the metric there.
        end: where the quarter ends, in the unit of ``along``.

    Returns:
        The mean over what was evaluated of it; NaN without an evaluation after the first step.
    """
    along, values = along[along > 0], values[along > 0]
    begin, kept = 0.75 * end, (along > 0.75 * end) & (along < end)
    ends = [(position, read_off(along, values, position)) for position in (begin, end) if len(along)]
    points = [(position, value) for position, value in ends if value is not None]
    points = sorted([*points, *zip(along[kept], values[kept], strict=True)])
    if len(points) < 2:
        return points[0][1] if points else math.nan
    positions, heights = np.array(points).T
    return float(np.trapezoid(heights, positions) / (positions[-1] - positions[0]))


class BranchLosses(NamedTuple):
    """Losses of the branches of one checkpoint after equal numbers of examples. Branches of one seed see the same
    examples in the same order.

    Attributes:
        factors: k, the ratio of the batch size to that of the trunk, above 0 and increasing, ``[K]``.
        losses: what :func:`end_mean` makes of the metric, lower is better, ``[N, K]`` for N seeds; NaN where no
            branch was run, infinity where it diverged.
    """

    factors: Array
    losses: Array


@dataclass(frozen=True, kw_only=True)
class FactorCurve:
    """Draws of the loss of the factors of one checkpoint.

    Attributes:
        factors: factors with a loss, of which no branch diverged, ``[K]``, increasing.
        losses: of every seed at the best learning rate, ``[K, N]``; NaN where there is none.
        places: ln of factors between the first and the last, ``[G]``.
        curves: draws there, ``[R, G]``.
        drawn: draws at the factors, ``[R, K]``.
        freedom: degrees of freedom of the noise that seeds show; 0 with one seed.
        deviation: standard deviation of one loss; NaN without seeds that show it.
        apart: standard deviation of one loss without what the branches of a seed have in common; NaN likewise.
        slopes: against ln k of the losses of every seed that ran all factors, shape ``[n]``; none with fewer than 3
            factors.
        lent: whether the noise is taken from other checkpoints.
    """

    factors: Array
    losses: Array = field(repr=False)
    places: Array = field(repr=False)
    curves: Array = field(repr=False)
    drawn: Array = field(repr=False)
    freedom: int = 0
    deviation: float = math.nan
    apart: float = math.nan
    slopes: Array = field(default_factory=lambda: np.empty(0), repr=False)
    lent: bool = False


@dataclass(frozen=True, kw_only=True)
class LocalFactor:
    """The factor k* from which on branches are worse than the best one by more than the tolerance.

    Attributes:
        factor: k*, the median of the draws; no value if it lies beyond the factors that were run, and an end of its
            interval is open likewise.
        drawn: draws of ln k*, ``[R]``; infinite beyond the largest factor.
        compared: by factor, its loss above that of the best factor, and whether it is equal to it within the tolerance.
        beyond: ``above`` if the largest factor is within the tolerance, ``below`` if only the smallest one is;
            otherwise empty.
    """

    factor: Quantity = UNKNOWN
    drawn: Array = field(repr=False)
    compared: dict[float, tuple[Quantity, Standing]] = field(default_factory=dict)
    beyond: str = ""


def factor_curve(
    factors: Array,
    found: Sequence[AtBest],
    scale: Scale,
    draws: int,
    seed: int,
    lenders: Sequence[FactorCurve] = (),
) -> FactorCurve:
    """Return draws of the losses at some factors, at least one of which has a value.

    Args:
        factors: ``[K]``, increasing.
        found: the losses at the best learning rate, in units of ``scale``; the seeds of all factors have the same
            columns.
        scale: see :func:`analysis.estimate.objective.loss_studies`.
        draws: number of draws.
        seed: seed of the draws.
        lenders: other checkpoints of the same run, whose noise counts if that of this one is hardly known.
    """
    here = [bool(np.isfinite(each.values).any()) for each in found]
    factors, found = factors[here], [each for each, kept in zip(found, here, strict=True) if kept]
    table = np.array([each.values for each in found])
    logs, freedom = np.log(factors), int(np.isfinite(table).sum()) - len(table)
    losses, prior = scale.zero + scale.unit * table, Line()
    if len(factors) < 2:
        flat = np.zeros((draws, 1))
        return FactorCurve(factors=factors, losses=losses, places=logs, curves=flat, drawn=flat, freedom=freedom)
    known = [each for each in lenders if each.freedom >= SOME] if freedom < ENOUGH else []
    if known:
        # of a single seed, what its branches have in common moves the level only
        noise = max(each.deviation if freedom else each.apart for each in known)
        prior, wanted = Line(noise_spread=_ALIKE), noise / prior.noise
        ratio, scale = scale.unit / wanted, scale._replace(unit=wanted)
        found = [
            replace(each, values=ratio * each.values, variance=ratio**2 * each.variance, seeds=None) for each in found
        ]
    made, x, whole = (
        draw(factors.tolist(), found, draws, seed, prior),
        logs - logs.mean(),
        np.isfinite(table).all(axis=0),
    )
    places = np.unique(np.append(logs, made.log_sizes[(made.log_sizes > logs[0]) & (made.log_sizes < logs[-1])]))
    curve = FactorCurve(
        factors=factors,
        losses=losses,
        places=places,
        curves=scale.zero + scale.unit * made.drawn(np.exp(places)),
        drawn=scale.zero + scale.unit * made.drawn(factors),
        freedom=freedom,
        deviation=scale.unit * made.deviation if freedom else math.nan,
        apart=scale.unit * _apart(made) if freedom else math.nan,
        slopes=x / (x @ x) @ losses[:, whole] if len(logs) > 2 else np.empty(0),
        lent=bool(known),
    )
    tilts = _tilts(x, [each.slopes for each in (*known, curve)], made, scale, seed)
    return replace(
        curve,
        curves=curve.curves + np.outer(tilts, places - logs.mean()),
        drawn=curve.drawn + np.outer(tilts, x),
    )


def _tilts(x: Array, slopes: Sequence[Array], made: Draws, scale: Scale, seed: int) -> Array:
    """Return slopes against ln k, ``x`` from its mean, to add to the draws, ``[R]``.

    What other examples do to a branch grows with k, so that losses of a seed depart from those of the others as
    straight lines do: alike at neighbouring factors, and far apart at distant ones. There are as few such lines as
    seeds, and no model of the correlation of two branches shows how unlike they are. The slopes of the seeds' own
    losses do: where these scatter more than the draws do, slopes by Student's t are added.
    """
    known = [each for each in slopes if len(each) > 1]
    weights = scale.unit * x / (x @ x)
    measured = max((float(np.var(each, ddof=1)) for each in known), default=0.0) / float(made.seeds.mean())
    if len(x) < 3 or measured <= float(weights @ made.covariance @ weights):
        return np.zeros(made.count)
    freedom = sum(len(each) - 1 for each in known)
    return math.sqrt(measured) * np.random.default_rng([seed, 3]).standard_t(freedom, made.count)


def _apart(made: Draws) -> float:
    """Return the standard deviation of one objective without what those of a seed have in common."""
    count = len(made.covariance)
    own = np.trace(made.covariance) / count
    common = (made.covariance.sum() - count * own) / (count * (count - 1))
    return math.sqrt(float(made.seeds.mean() * max(own - common, 0.0)))


def local_factor(
    curve: FactorCurve, tolerance: float, confidence: float, diverged: float | None = None, seed: int = 0
) -> LocalFactor:
    """Estimate k*, the largest factor whose loss is at most the tolerance above the least one.

    Args:
        curve: result of :func:`factor_curve`.
        tolerance: tolerance above 0, in the unit of the loss.
        confidence: level of the intervals.
        diverged: smallest factor above those of the curve at which a branch diverged; ``None`` if there is none. If the
            largest factor of the curve is within the tolerance, k* is drawn between the two.
        seed: seed of these draws.
    """
    logs = np.log(curve.factors)
    found = standings(curve.drawn, tolerance, confidence)
    above = curve.drawn - curve.drawn[:, [found.best]]
    middles = np.maximum(np.median(above, axis=0), 0.0)
    excess = [Quantity(*each) for each in zip(middles.tolist(), zip(found.low, found.high, strict=True), strict=True)]
    compared = zip(curve.factors.tolist(), zip(excess, found.standings, strict=True), strict=True)
    drawn = largest_within(curve.places, curve.curves, tolerance)
    if diverged is not None:
        between = np.random.default_rng([seed, 1]).uniform(logs[-1], math.log(diverged), len(drawn))
        drawn = np.where(np.isposinf(drawn), between, drawn)
    tail = 0.5 - confidence / 2
    low, middle, high = (float(np.quantile(drawn, rank, method="nearest")) for rank in (tail, 0.5, 1 - tail))
    # if all other factors lost, even smaller ones could be better
    below = len(logs) == 1 or middle < logs[1]
    beyond = "above" if math.isinf(middle) else "below" if below else ""
    ends = (
        None if beyond == "below" else math.exp(min(low, logs[-1])),
        math.exp(high) if math.isfinite(high) else None,
    )
    return LocalFactor(
        factor=Quantity(None if beyond else math.exp(middle), ends),
        drawn=drawn,
        compared=dict(compared),
        beyond=beyond,
    )


def recovery(
    whole: tuple[LocalFactor, FactorCurve], half: tuple[LocalFactor, FactorCurve], confidence: float, seed: int
) -> Quantity:
    """Return the ratio of k* after a whole window to k* after half of it.

    The two are made of the same branches, and hang together as much as the losses of their seeds do. The draws are put
    in an order in which ranks do, too (a Gaussian copula).
    """
    if whole[0].factor.value is None or half[0].factor.value is None:
        return UNKNOWN
    count, together = len(whole[0].drawn), _correlation(whole[1], half[1])
    normal = np.random.default_rng([seed, 2]).standard_normal((2, count))
    normal[1] = together * normal[0] + math.sqrt(1 - together**2) * normal[1]
    ranks = normal.argsort(axis=1).argsort(axis=1)
    first, second = (np.sort(each.drawn)[order] for (each, _), order in zip((whole, half), ranks, strict=True))
    value = whole[0].factor.value / half[0].factor.value
    if not np.isfinite([first, second]).all():
        return Quantity(value, OPEN)
    return Quantity.of_draws(np.append(value, np.exp(first - second)), confidence)


def _correlation(one: FactorCurve, other: FactorCurve) -> float:
    """Return the correlation of the losses of two windows, without what factors and seeds do to all of them."""
    both = np.isin(one.factors, other.factors), np.isin(other.factors, one.factors)
    tables = [each.losses[kept] for each, kept in zip((one, other), both, strict=True)]
    whole = np.isfinite(tables).all(axis=(0, 1))
    left = [table[:, whole] for table in tables]
    if min(left[0].shape) < 2:
        return 0.0
    left = [each - each.mean(axis=0) - each.mean(axis=1, keepdims=True) + each.mean() for each in left]
    size = math.sqrt(float((left[0] ** 2).sum() * (left[1] ** 2).sum()))
    return float(np.clip((left[0] * left[1]).sum() / size, 0.0, 1.0)) if size else 0.0


def smoothed(losses: Sequence[float] | np.ndarray) -> float:
    """Return the exponential average at the end of a series of losses, started at the first one; NaN without losses."""
    series = [float(loss) for loss in losses] or [math.nan]
    return functools.reduce(lambda average, loss: SMOOTHING * loss + (1 - SMOOTHING) * average, series)


def published(branches: BranchLosses) -> tuple[float | None, Quantity]:
    """Return ``k*`` by the published rule, and the point that the paper plots, with its interval.

    If ``k*`` is the largest k that was run, the point has no value and the interval is open above. A k whose branch
    diverged has not recovered. ``None`` and no value if no seed ran every k, or a branch of the smallest k diverged.
    """
    whole = branches.losses[~np.isnan(branches.losses).any(axis=1)]
    if not len(whole) or not np.isfinite(whole[:, 0]).all():
        return None, UNKNOWN
    means = whole.mean(axis=0)
    held = means <= np.append(np.inf, np.minimum.accumulate(means)[:-1] + TOLERANCE)
    last = int(np.flatnonzero(held)[-1])
    largest = float(branches.factors[last])
    if last + 1 == len(means):
        return largest, Quantity(None, (largest, None))
    after = float(branches.factors[last + 1])
    return largest, Quantity(math.sqrt(largest * after), (largest, after))
