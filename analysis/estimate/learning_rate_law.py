r"""The law of the best learning rate against the batch size.

.. math:: \eta(B) = \eta_{max} / (1 + B_n/B)^\alpha

McCandlish et al. (2018, "An Empirical Model of Large-Batch Training", arXiv 1812.06162), equation 2.6 for :math:`\alpha
= 1` (SGD) and A.3 for any: a power :math:`B^\alpha` far below the noise batch size :math:`B_n`, constant far above it.
For :math:`B_n \to \infty` it is a pure power law.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from scipy.special import ndtri

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.best_rate import at_best
from analysis.estimate.studies import Study
from analysis.formatting import plain
from analysis.quantities import OPEN, UNKNOWN, Array, Interval, Quantity, interval, percentiles, widening

# Number of optima inside the grid that a law needs; it has three parameters
LEAST = 4

_STEEPEST = 1.0  # Largest ``|alpha|``: below ``B_n`` no rule is steeper than the linear one

# Factor beyond the measured batch sizes up to which `B_n` is searched; beyond, it counts as 0 or infinity
_REACH = 30.0

# Smallest scale of the deviations: few optima may lie on a law by chance, so their variances are never reduced by more
# than about half. The measured coverage is in `docs/learning-rates.md`.
_QUIETEST = 0.7


# Degrees of freedom that the stated variances of the optima count as at most, beside the optima's own scatter: seeds
# tell the noise, but neither how skewed a bottom is nor where pruned learning rates would have ended.
_WORTH = 3


class Trend(StrEnum):
    """How the best learning rate depends on the batch size."""

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
        log_lr, variance, edge, believed, step: as in :class:`analysis.estimate.best_rate.AtBest`.
        half_width: of the interval in ln lr; NaN if there is one seed and no law, so that the scatter is unknown.
    """

    batch_size: int
    log_lr: float
    variance: float
    edge: int
    step: float
    seeds: int
    believed: bool = False
    half_width: float = math.nan

    @property
    def lr(self) -> float:
        return math.exp(self.log_lr)

    @property
    def at_grid_edge(self) -> bool:
        """Whether it is only known to be a bound; no edge where other batch sizes say where the best one lies."""
        return self.edge != 0 and not self.believed

    @property
    def interval(self) -> Interval:
        """The interval of ``lr``. At an edge it is open on the outer side and ends half a grid step inside on the
        other."""
        if self.edge:
            end = math.exp(self.log_lr - self.edge * self.step / 2)
            return (end, None) if self.edge > 0 else (None, end)
        low, high = math.exp(self.log_lr - self.half_width), math.exp(self.log_lr + self.half_width)
        return OPEN if math.isnan(low) else (low, high)

    def to_json(self) -> dict[str, Any]:
        return {name: plain(getattr(self, name)) for name in ("batch_size", "lr", "interval", "at_grid_edge")}


@dataclass(frozen=True, kw_only=True)
class Factor:
    """Factor for the learning rate when the batch size grows from ``batch_size`` to ``multiple`` times that, with its
    interval.

    ``square_root`` and ``linear`` say whether these rules lie inside the interval, ``extrapolated`` whether the larger
    batch size is beyond all optima inside the grid.
    """

    batch_size: float
    multiple: float
    value: float
    interval: tuple[float, float]
    square_root: bool
    linear: bool
    extrapolated: bool


@dataclass(frozen=True, kw_only=True)
class LearningRateLaw:
    """The best learning rates by batch size and the law fitted to them.

    Attributes:
        optima: one per batch size that reached the target, in increasing order; those at an edge are not used for the
            law.
        trend: kind of dependence; saturation counts as seen if ``B_n`` is below the largest batch size with this
            confidence.
        scatter: scatter of the optima around the law, relative to what seeds and grid explain; ``None`` without a law.
        slope: slope of the straight line of ln lr against ln B; without a law its value is ``None``.
        first_slope: slope of the law at the smallest batch size; without a law its value is ``None``.
        max_lr: ``eta_max``; its value, and those of ``noise_batch_size`` and ``alpha``, are ``None`` if no saturation
            was seen.
        noise_batch_size: ``B_n`` in examples.
        curves: ``ln eta_max``, ``ln B_n`` and ``alpha`` of the law, then of every resample, shape ``[3, 1 + R]``. If
            ``ln B_n`` is infinite, ``ln eta_max`` is ln lr at B = 1.
    """

    optima: tuple[Optimum, ...]
    confidence: float = field(repr=False)
    trend: Trend = Trend.UNKNOWN
    scatter: float | None = None
    slope: Quantity = UNKNOWN
    first_slope: Quantity = UNKNOWN
    max_lr: Quantity = UNKNOWN
    noise_batch_size: Quantity = UNKNOWN
    alpha: Quantity = UNKNOWN
    curves: Array = field(default_factory=lambda: np.empty((3, 0)), repr=False)

    @property
    def inside(self) -> list[int]:
        """Batch sizes of the optima inside the grid."""
        return [entry.batch_size for entry in self.optima if not entry.edge]

    def log_lrs(self, batch_sizes: Sequence[float] | Array) -> Array:
        """Return ln lr of the law and of its resamples, shape ``[1 + R, len(batch_sizes)]``."""
        logs = np.log(np.asarray(batch_sizes, dtype=float))
        level, log_noise, powers = self.curves[..., None]
        return np.asarray(level + powers * _shape(log_noise, logs))

    def factor(self, batch_size: float, multiple: float) -> Factor | None:
        """Return the factor for a change of the batch size; ``None`` without a law."""
        if self.trend is Trend.UNKNOWN:
            return None
        here, there = self.log_lrs([batch_size, batch_size * multiple]).T
        factors = np.exp(there - here)
        low, high = percentiles(factors[1:], self.confidence).tolist()
        return Factor(
            batch_size=batch_size,
            multiple=multiple,
            value=float(factors[0]),
            interval=(low, high),
            square_root=low <= math.sqrt(multiple) <= high,
            linear=low <= multiple <= high,
            extrapolated=batch_size * multiple > self.inside[-1],
        )


def learning_rate_law(
    studies: Sequence[Study], config: AnalysisConfig = DEFAULT, steepest: float = 1.0
) -> LearningRateLaw:
    """Find the optima and fit the law.

    The variances of the optima are scaled by a common factor: their scatter around the law, to whose degrees of freedom
    those of the seeds are added, :data:`_WORTH` of them at most. The resamples are normal draws around the law, widened
    by Student's t, and refitted. ``studies`` are those of one optimizer at one target, in order of increasing batch
    size; ``steepest`` is as for :func:`analysis.estimate.best_rate.at_best`.
    """
    rng, confidence = np.random.default_rng(config.seed), config.confidence
    optima = [
        Optimum(
            batch_size=study.batch_size,
            log_lr=best.log_lr,
            variance=best.log_lr_variance,
            edge=best.edge,
            step=best.step,
            seeds=int(np.isfinite(best.values).sum()),
        )
        for study, best in zip(studies, at_best(studies, steepest), strict=True)
        if math.isfinite(best.log_lr)
    ]
    used = [entry for entry in optima if not entry.edge]
    freedom = sum(max(entry.seeds - 1, 0) for entry in used)  # 0 seeds where runs are bounded alone

    def wide(scale: float) -> tuple[Optimum, ...]:
        normal = float(ndtri(0.5 + confidence / 2))
        return tuple(replace(entry, half_width=scale * math.sqrt(entry.variance) * normal) for entry in optima)

    if len(used) < LEAST:
        scale = widening(freedom, confidence) if freedom else math.nan
        return LearningRateLaw(optima=wide(scale), confidence=confidence)
    logs, vertices = np.log([entry.batch_size for entry in used]), np.array([entry.log_lr for entry in used])
    noise = np.sqrt([entry.variance for entry in used])
    weights = noise**-2 / (noise**-2).sum()
    level, log_noise, power = _fit(vertices[None], weights, logs)
    fitted = level[:, None] + power[:, None] * _shape(log_noise[:, None], logs)
    left = len(used) - (3 if np.isfinite(log_noise[0]) and abs(power[0]) < _STEEPEST else 2)
    worth = min(freedom, _WORTH)
    scatter = math.sqrt((float((((vertices - fitted[0]) / noise) ** 2).sum()) + worth) / (left + worth))
    scale = max(_QUIETEST, scatter) * widening(left + worth, confidence)
    rows = np.vstack([vertices, fitted + scale * noise * rng.standard_normal((config.resamples, len(used)))])
    level, log_noise, power = _fit(rows, weights, logs)
    across = (logs - logs @ weights) * weights
    slope = Quantity.of_draws(rows @ across / (across @ logs), confidence)
    # the first of the values that are tried stands for a B_n too far below all batch sizes to be seen
    sizes = np.where(log_noise > logs[0] - math.log(_REACH) + 1e-9, np.exp(log_noise), 0.0)
    ends = interval(sizes[1:], confidence)
    saturating, (low, high) = {}, slope.interval
    trend = Trend.FALLS if high is not None and high < 0 else Trend.FLAT
    if low is not None and low > 0:
        trend = Trend.SATURATES if ends[1] is not None and ends[1] <= used[-1].batch_size else Trend.POWER_LAW
    if trend is Trend.SATURATES:
        highest = np.where(np.isfinite(log_noise), np.exp(level), np.inf)
        saturating = {
            "max_lr": Quantity(value=float(highest[0]), interval=interval(highest[1:], confidence)),
            "noise_batch_size": Quantity(value=math.exp(log_noise[0]), interval=ends),
            "alpha": Quantity.of_draws(power, confidence),
        }
    return LearningRateLaw(
        optima=wide(scale),
        confidence=confidence,
        trend=trend,
        scatter=scatter,
        slope=slope,
        first_slope=Quantity.of_draws(power / (1 + np.exp(logs[0] - log_noise)), confidence),
        **saturating,
        curves=np.stack([level, log_noise, power]),
    )


def _shape(log_noise: Array, logs: Array) -> Array:
    """Return ``-ln(1 + B_n/B)``, or ``ln B`` where ``B_n`` is infinite."""
    finite = np.where(np.isfinite(log_noise), log_noise, 0.0)
    return np.asarray(np.where(np.isfinite(log_noise), -np.logaddexp(0.0, finite - logs), logs))


def _fit(rows: Array, weights: Array, logs: Array) -> tuple[Array, Array, Array]:
    """Fit every row of ``rows`` ``[R, M]`` by least squares with ``weights`` that sum to 1; return level, ln B_n and
    alpha, shape ``[R]`` each.

    The fit is linear at a given ``B_n``, so all values on a grid are tried.
    """
    reach = math.log(_REACH)
    noise = np.append(np.arange(logs[0] - reach, logs[-1] + reach, 0.05), np.inf)  # infinite: a power law to the end
    shapes = _shape(noise[:, None], logs)
    means, centre = shapes @ weights, rows @ weights
    shapes = shapes - means[:, None]
    product, square = (rows - centre[:, None]) @ (shapes * weights).T, shapes**2 @ weights
    powers = np.clip(product / square, -_STEEPEST, _STEEPEST)
    best = (powers * (powers * square - 2 * product)).argmin(axis=1)
    power = powers[np.arange(len(rows)), best]
    return centre - power * means[best], noise[best], power
