r"""How the best learning rate depends on the batch size.

At every batch size the optimum is the vertex of the parabola through the best learning rate of the grid and its two
neighbours, in seed-mean ln steps over ln lr. Through the optima goes

.. math:: \eta(B) = \eta_{max} / (1 + B_n/B)^\alpha

McCandlish et al. (2018, "An Empirical Model of Large-Batch Training", arXiv 1812.06162), equation 2.6 for
:math:`\alpha = 1` (SGD) and A.3 for any: a power :math:`B^\alpha` far below the noise batch size :math:`B_n`, constant
far above it. For :math:`B_n \to \infty` it is the power law alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from scipy.special import ndtri

from analysis.arrays import Array
from analysis.estimate.fitting import interval, widening
from analysis.estimate.studies import Study
from cbs.lr_choice import best_lr_many
from cbs.record import TrialStatus

Interval = tuple[float | None, float | None]

LEAST = 4
"""Optima inside the grid that a law needs; three are its parameters."""

STEEPEST = 1.0
"""Bound of ``|alpha|``: below ``B_n`` no rule is steeper than the linear one."""

NOT_RUN = ("", TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY)
"""Status of a cell that says nothing about its learning rate."""

_REACH = 30.0
"""How far outside the measured batch sizes ``B_n`` is looked for; beyond, it counts as 0 or infinity."""

_SHAPE = 1 / (6 * math.sqrt(3))
"""Standard deviation, in grid steps, that no optimum is known better than. Steps that rise up to twice as fast on one
side of the optimum as on the other move the vertex by up to 1/6 of a step; that is uniform on (-1/6, 1/6)."""

_QUIETEST = 0.7
"""Few optima may lie on a law by chance: their variances never shrink by more than about half. The measured coverage
is in ``docs/learning-rates.md``."""

_DRAWS = 200


class Trend(StrEnum):
    """What the optima show."""

    SATURATES = "rises, then constant"
    POWER_LAW = "power law, no saturation seen"
    FLAT = "no dependence seen"
    FALLS = "falls"
    UNKNOWN = "too few optima"


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best learning rate at one batch size.

    Attributes:
        batch_size: examples per step.
        lr: between the learning rates that were tried; at an edge of the grid the one tried there.
        interval: of ``lr``, from the scatter of seeds and of the optima around the law, and from the grid; at an edge
            it is open on the far side and ends half a grid step inside on the other. ``(None, None)`` where one seed
            and no law leave the scatter unknown.
        at_grid_edge: whether it is only a bound, and left out of the law.
    """

    batch_size: int
    lr: float
    interval: Interval
    at_grid_edge: bool


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What to multiply the learning rate with for a larger batch.

    Attributes:
        batch_size: where it starts, in examples.
        multiple: how many times larger the batch becomes.
        value, interval: the factor.
        square_root, linear: whether ``sqrt(multiple)`` and ``multiple`` lie inside the interval.
        extrapolated: whether the larger batch is larger than any with a known optimum.
    """

    batch_size: float
    multiple: float
    value: float
    interval: Interval
    square_root: bool
    linear: bool
    extrapolated: bool


@dataclass(frozen=True, kw_only=True)
class Law:
    """The law through the optima.

    Attributes:
        optima: one per batch size that reached the target, increasing.
        trend: what they show.
        slope: of the straight line through ln lr over ln B, with its interval; ``None`` where ``trend`` is unknown.
        first_slope: of the law at the smallest batch size, likewise.
        max_lr: ``eta_max``; it, ``noise_batch_size`` (examples) and ``alpha`` only where saturation was seen.
        scatter: of the optima around the law, over what seeds and grid explain.
        log_max_lr, log_noise, powers: of the fit, shape ``[1 + R]``, its resamples behind it; where ``log_noise`` is
            infinite ``log_max_lr`` is the ln lr at B = 1.
    """

    optima: tuple[Optimum, ...]
    trend: Trend
    confidence: float
    slope: float | None = None
    slope_interval: Interval = (None, None)
    first_slope: float | None = None
    first_slope_interval: Interval = (None, None)
    max_lr: float | None = None
    max_lr_interval: Interval = (None, None)
    noise_batch_size: float | None = None
    noise_batch_size_interval: Interval = (None, None)
    alpha: float | None = None
    alpha_interval: Interval = (None, None)
    scatter: float | None = None
    log_max_lr: Array = field(default_factory=lambda: np.empty(0), repr=False)
    log_noise: Array = field(default_factory=lambda: np.empty(0), repr=False)
    powers: Array = field(default_factory=lambda: np.empty(0), repr=False)

    def log_lrs(self, batch_sizes: Sequence[float] | Array) -> Array:
        """ln lr of the fit and of its resamples, shape ``[1 + R, len(batch_sizes)]``."""
        logs = np.log(np.asarray(batch_sizes, dtype=float))
        return np.asarray(self.log_max_lr[:, None] + self.powers[:, None] * _shape(self.log_noise[:, None], logs))

    def factor(self, batch_size: float, multiple: float) -> Factor | None:
        """The factor from ``batch_size`` to ``multiple`` times it; ``None`` without a law."""
        if self.trend is Trend.UNKNOWN:
            return None
        here, there = self.log_lrs([batch_size, batch_size * multiple]).T
        factors = np.exp(there - here)
        low, high = np.quantile(factors[1:], _ends(self.confidence))
        inside = [bool(low <= rule <= high) for rule in (math.sqrt(multiple), multiple)]
        known = max(entry.batch_size for entry in self.optima if not entry.at_grid_edge)
        return Factor(
            batch_size=batch_size,
            multiple=multiple,
            value=float(factors[0]),
            interval=(float(low), float(high)),
            square_root=inside[0],
            linear=inside[1],
            extrapolated=batch_size * multiple > known,
        )


def learning_rate_law(studies: Sequence[Study], *, confidence: float, resamples: int, seed: int) -> Law:
    """The optima and the law through them.

    The variance of an optimum is that of seeds drawn with replacement, the winner chosen again, pooled over batch
    sizes; or what the grid leaves open, where that is larger. All are then scaled alike, by how much the optima scatter
    around the law and by the seeds, each with its degrees of freedom. The resamples are normal draws around the law,
    widened by Student's t, and refitted.

    Args:
        studies: of one optimizer at one target, by increasing batch size.
        confidence: of every interval.
        resamples: of the law.
        seed: of all random numbers.
    """
    rng = np.random.default_rng(seed)
    usable = [study for study in studies if study.winner is not None and np.isfinite(study.lrs).all()]
    measured = [_measured(study, rng) for study in usable]
    inside = [place for place, entry in enumerate(measured) if not entry.edge]
    freedom = sum(measured[place].seeds - 1 for place in inside)
    pooled = sum((measured[place].seeds - 1) * measured[place].seed_variance for place in inside) / max(freedom, 1)
    variance = np.array([max(pooled / entry.seeds, entry.grid_variance) for entry in measured])
    if len(inside) < LEAST:
        half = np.sqrt(variance) * (widening(freedom, confidence) if freedom else math.nan) * _normal(confidence)
        return Law(optima=_optima(usable, measured, half), trend=Trend.UNKNOWN, confidence=confidence)
    logs = np.log([usable[place].batch_size for place in inside])
    vertices = np.array([measured[place].vertex for place in inside])
    used = variance[inside]
    level, noise, power = _fit(vertices[None], 1 / used, logs)
    fitted = level[:, None] + power[:, None] * _shape(noise[:, None], logs)
    left = len(inside) - (3 if np.isfinite(noise[0]) and abs(power[0]) < STEEPEST else 2)
    scatter = math.sqrt((float(((vertices - fitted[0]) ** 2 / used).sum()) + freedom) / (left + freedom))
    scale = max(_QUIETEST, scatter) * widening(left + freedom, confidence)
    rows = fitted + scale * np.sqrt(used) * rng.standard_normal((resamples, len(used)))
    found = [np.concatenate(pair) for pair in zip((level, noise, power), _fit(rows, 1 / used, logs), strict=True)]
    optima = _optima(usable, measured, scale * np.sqrt(variance) * _normal(confidence))
    return _law(
        optima, _lines(np.concatenate([vertices[None], rows]), 1 / used, logs), found, logs, scatter, confidence
    )


@dataclass(frozen=True)
class _Measured:
    vertex: float
    step: float
    edge: int
    seeds: int
    seed_variance: float
    grid_variance: float


def _measured(study: Study, rng: np.random.Generator) -> _Measured:
    """The optimum of one batch size: ln lr, the grid step around it, the edge it lies at (-1, 0, 1), the variance of
    one seed and what the grid leaves open."""
    tried = ~np.isin(study.status, NOT_RUN).all(axis=1)
    logs, steps, bound = np.log(study.lrs[tried]), study.steps[tried], study.bound[tried]
    seeds = steps.shape[1]
    draws = np.vstack([np.arange(seeds), rng.integers(seeds, size=(_DRAWS if seeds > 1 else 0, seeds))])
    low, high, step, edge = _vertices(logs, steps[:, draws].swapaxes(0, 1), bound[:, draws].swapaxes(0, 1))
    middle = (low + high) / 2
    variance = float(np.nanvar(middle[1:])) * seeds**2 / (seeds - 1) if seeds > 1 else 0.0
    grid = (high[0] - low[0]) ** 2 / 12 + (_SHAPE * step[0]) ** 2
    return _Measured(float(middle[0]), float(step[0]), int(edge[0]), seeds, variance, float(grid))


def _vertices(logs: Array, steps: Array, bound: Array) -> tuple[Array, Array, Array, Array]:
    """Ends between which the vertex lies, the grid step around it, and the edge it lies at; shape ``[R]`` each.

    A neighbour that did not reach the target on every seed is only known to be worse, by what it ran. At an edge both
    ends are the learning rate there. NaN where no seed reached the target.

    Args:
        logs: ln of the learning rates, shape ``[L]``.
        steps, bound: as in :class:`Study`, shape ``[R, L, N]``.
    """
    winner = best_lr_many(steps)
    rows, last = np.arange(len(steps)), len(logs) - 1
    edge = np.where(winner == last, 1, np.where(winner == 0, -1, 0))
    here = np.log(steps[rows, winner])
    ends, gaps = [], []
    for side in (-1, 1):
        beside = np.clip(winner + side, 0, last)
        gaps.append(np.abs(logs[beside] - logs[winner]))
        rise = np.log(steps[rows, beside]) - here
        exact = (np.isfinite(rise) | ~np.isfinite(here)).all(axis=1)
        rise = np.where(np.isfinite(rise), rise, np.log(bound[rows, beside]) - here)
        known = np.isfinite(rise)
        least = np.maximum(np.where(known, rise, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1), 0.0)
        ends.append((least, np.where(exact, least, np.inf)))
    step = np.where(edge == 0, (gaps[0] + gaps[1]) / 2, gaps[0] + gaps[1])
    (left, left_most), (right, right_most) = ends
    low, high = _vertex(left, right_most, *gaps, tie=-1), _vertex(left_most, right, *gaps, tie=1)
    at = np.where(winner < 0, np.nan, logs[winner])
    return np.where(edge == 0, at + low, at), np.where(edge == 0, at + high, at), step, edge


def _vertex(left: Array, right: Array, below: Array, above: Array, *, tie: int) -> Array:
    """Vertex of the parabola through 0 and the rises ``left`` at ``-below`` and ``right`` at ``above``; infinite rises
    and none at all are limits, ``tie`` says from which side."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = left / below, right / above
        found = (above * first - below * second) / (2 * (first + second))
    found = np.where(np.isinf(first), above / 2, np.where(np.isinf(second), -below / 2, found))
    both = (np.isinf(first) & np.isinf(second)) | (first + second == 0)
    return np.asarray(np.where(both, above / 2 if tie > 0 else -below / 2, found))


def _shape(log_noise: Array, logs: Array) -> Array:
    """``-ln(1 + B_n/B)``; ``ln B`` where ``B_n`` is infinite."""
    finite = np.where(np.isfinite(log_noise), log_noise, 0.0)
    return np.asarray(np.where(np.isfinite(log_noise), -np.logaddexp(0.0, finite - logs), logs))


def _fit(rows: Array, weights: Array, logs: Array) -> tuple[Array, Array, Array]:
    """Weighted least squares of every row of ``rows`` ``[R, M]``: level, ln B_n and alpha, shape ``[R]`` each. The fit
    is linear at a given ``B_n``, and all of a grid are tried."""
    reach = math.log(_REACH)
    noise = np.append(np.arange(logs[0] - reach, logs[-1] + reach, 0.05), np.inf)
    share = weights / weights.sum()
    shapes = _shape(noise[:, None], logs)
    means, centre = shapes @ share, rows @ share
    shapes = shapes - means[:, None]
    product, square = (rows - centre[:, None]) @ (shapes * share).T, (shapes**2) @ share
    powers = np.clip(product / square, -STEEPEST, STEEPEST)
    best = (powers * (powers * square - 2 * product)).argmin(axis=1)
    power = powers[np.arange(len(rows)), best]
    return centre - power * means[best], noise[best], power


def _lines(rows: Array, weights: Array, logs: Array) -> Array:
    """Slope of the straight line through every row."""
    share = weights / weights.sum()
    across = (logs - logs @ share) * share
    return np.asarray(rows @ across / (across @ logs))


def _law(
    optima: tuple[Optimum, ...], slopes: Array, found: list[Array], logs: Array, scatter: float, confidence: float
) -> Law:
    level, noise, power = found
    low, high = np.quantile(slopes[1:], _ends(confidence))
    first = power / (1 + np.exp(logs[0] - noise))
    lowest = logs[0] - math.log(_REACH)
    sizes = np.where(noise > lowest, np.exp(noise), 0.0)
    bounds = interval(sizes[1:], confidence)
    saturates = bounds[1] is not None and bounds[1] <= np.exp(logs[-1])
    trend = Trend.FALLS if high < 0 else Trend.FLAT if low <= 0 else Trend.SATURATES if saturates else Trend.POWER_LAW
    law = Law(
        optima=optima,
        trend=trend,
        confidence=confidence,
        slope=float(slopes[0]),
        slope_interval=(float(low), float(high)),
        first_slope=float(first[0]),
        first_slope_interval=_quantiles(first[1:], confidence),
        scatter=scatter,
        log_max_lr=level,
        log_noise=noise,
        powers=power,
    )
    if trend is not Trend.SATURATES:
        return law
    return replace(
        law,
        max_lr=float(np.exp(level[0])),
        max_lr_interval=interval(np.where(np.isfinite(noise), np.exp(level), np.inf)[1:], confidence),
        noise_batch_size=float(sizes[0]),
        noise_batch_size_interval=bounds,
        alpha=float(power[0]),
        alpha_interval=_quantiles(power[1:], confidence),
    )


def _optima(studies: Sequence[Study], measured: Sequence[_Measured], half: Array) -> tuple[Optimum, ...]:
    """With the intervals ``vertex -+ half``."""
    found = []
    for study, entry, width in zip(studies, measured, half, strict=True):
        ends: Interval = (None, None)
        if entry.edge > 0:
            ends = (math.exp(entry.vertex - entry.step / 2), None)
        elif entry.edge < 0:
            ends = (None, math.exp(entry.vertex + entry.step / 2))
        elif math.isfinite(width):
            ends = (math.exp(entry.vertex - width), math.exp(entry.vertex + width))
        lr = math.exp(entry.vertex)
        found.append(Optimum(batch_size=study.batch_size, lr=lr, interval=ends, at_grid_edge=entry.edge != 0))
    return tuple(found)


def _ends(confidence: float) -> tuple[float, float]:
    return 0.5 - confidence / 2, 0.5 + confidence / 2


def _quantiles(values: Array, confidence: float) -> Interval:
    low, high = np.quantile(values, _ends(confidence))
    return float(low), float(high)


def _normal(confidence: float) -> float:
    return float(ndtri(0.5 + confidence / 2))
