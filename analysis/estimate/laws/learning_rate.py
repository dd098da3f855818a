r"""The law of the best learning rate against the batch size.

.. math:: \eta(B) = \eta_{max} / (1 + B_n/B)^\alpha

McCandlish et al. (2018, "An Empirical Model of Large-Batch Training", arXiv 1812.06162), equation 2.6 for
:math:`\alpha = 1` (SGD) and A.3 for any: a power :math:`B^\alpha` far below the noise batch size :math:`B_n`, constant
far above it. For :math:`B_n \to \infty` it is the power law alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from scipy.special import ndtri

from analysis.arrays import Array
from analysis.estimate.estimates import Quantity
from analysis.estimate.fitting import interval, widening
from analysis.estimate.optima import Optimum, optimum
from analysis.estimate.studies import Study

LEAST = 4
"""Optima inside the grid that a law needs; three are its parameters."""

_STEEPEST = 1.0
"""Bound of ``|alpha|``: below ``B_n`` no rule is steeper than the linear one."""

_REACH = 30.0
"""How far outside the measured batch sizes ``B_n`` is looked for; beyond, it counts as 0 or infinity."""

_QUIETEST = 0.7
"""Few optima may lie on a law by chance: their variances never shrink by more than about half. The measured coverage
is in ``docs/learning-rates.md``."""


class Trend(StrEnum):
    """What the optima show."""

    SATURATES = "rises, then constant"
    POWER_LAW = "power law, no saturation seen"
    FLAT = "no dependence seen"
    FALLS = "falls"
    UNKNOWN = "too few optima"


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What to multiply the learning rate with where the batch of ``batch_size`` examples becomes ``multiple`` times as
    large, with its interval; whether the square-root and the linear rule lie inside it; and whether the larger batch
    is beyond every known optimum."""

    batch_size: float
    multiple: float
    value: float
    interval: tuple[float, float]
    square_root: bool
    linear: bool
    extrapolated: bool


@dataclass(frozen=True, kw_only=True)
class Law:
    """The optima and the law through them.

    Attributes:
        optima: one per batch size that reached the target, increasing; those at an edge are not in the law.
        half_widths: of the intervals of ``optima`` in ln lr; NaN where one seed and no law leave the scatter unknown.
        confidence: of every interval.
        scatter: of the optima around the law, over what seeds and grid explain; ``None`` without a law.
        slopes: of the straight line through ln lr over ln B: measured, then of every resample, shape ``[1 + R]``.
        log_max_lr, log_noise, powers: of the law, likewise: ``ln eta_max``, ``ln B_n``, ``alpha``. Where ``log_noise``
            is infinite, ``log_max_lr`` is the ln lr at B = 1.
    """

    optima: tuple[Optimum, ...]
    half_widths: Array
    confidence: float
    scatter: float | None = None
    slopes: Array = field(default_factory=lambda: np.empty(0), repr=False)
    log_max_lr: Array = field(default_factory=lambda: np.empty(0), repr=False)
    log_noise: Array = field(default_factory=lambda: np.empty(0), repr=False)
    powers: Array = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def inside(self) -> list[int]:
        """Batch sizes of the optima inside the grid."""
        return [entry.batch_size for entry in self.optima if not entry.edge]

    @property
    def trend(self) -> Trend:
        """Saturation counts as seen where ``B_n`` lies below the largest batch size with this confidence."""
        if not len(self.slopes):
            return Trend.UNKNOWN
        low, high = self._ends(self.slopes)
        if low <= 0:
            return Trend.FALLS if high < 0 else Trend.FLAT
        end = interval(self._noise, self.confidence)[1]
        return Trend.SATURATES if end is not None and end <= self.inside[-1] else Trend.POWER_LAW

    @property
    def slope(self) -> Quantity:
        """Of the straight line; its value is ``None``, as that of ``first_slope``, without a law."""
        return self._quantity(self.slopes)

    @property
    def first_slope(self) -> Quantity:
        """Of the law at the smallest batch size."""
        first = self.inside[0] if len(self.powers) else 1
        return self._quantity(self.powers / (1 + np.exp(math.log(first) - self.log_noise)))

    @property
    def alpha(self) -> Quantity:
        """Its value is ``None``, as those of ``max_lr`` and ``noise_batch_size``, where no saturation was seen."""
        return self._quantity(self.powers) if self.trend is Trend.SATURATES else Quantity()

    @property
    def max_lr(self) -> Quantity:
        """``eta_max``."""
        if self.trend is not Trend.SATURATES:
            return Quantity()
        values = np.where(np.isfinite(self.log_noise), np.exp(self.log_max_lr), np.inf)
        return Quantity(value=float(values[0]), interval=interval(values[1:], self.confidence))

    @property
    def noise_batch_size(self) -> Quantity:
        """``B_n``, examples."""
        if self.trend is not Trend.SATURATES:
            return Quantity()
        return Quantity(value=math.exp(self.log_noise[0]), interval=interval(self._noise, self.confidence))

    @property
    def _noise(self) -> Array:
        """``B_n`` of the resamples; 0 at the end of what is searched."""
        lowest = math.log(self.inside[0]) - math.log(_REACH)
        return np.where(self.log_noise > lowest + 1e-9, np.exp(self.log_noise), 0.0)[1:]

    def log_lrs(self, batch_sizes: Sequence[float] | Array) -> Array:
        """ln lr of the law and of its resamples, shape ``[1 + R, len(batch_sizes)]``."""
        logs = np.log(np.asarray(batch_sizes, dtype=float))
        return np.asarray(self.log_max_lr[:, None] + self.powers[:, None] * _shape(self.log_noise[:, None], logs))

    def factor(self, batch_size: float, multiple: float) -> Factor | None:
        """``None`` without a law."""
        if self.trend is Trend.UNKNOWN:
            return None
        here, there = self.log_lrs([batch_size, batch_size * multiple]).T
        factors = np.exp(there - here)
        low, high = self._ends(factors)
        return Factor(
            batch_size=batch_size,
            multiple=multiple,
            value=float(factors[0]),
            interval=(low, high),
            square_root=low <= math.sqrt(multiple) <= high,
            linear=low <= multiple <= high,
            extrapolated=batch_size * multiple > self.inside[-1],
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        names = ("slope", "first_slope", "max_lr", "noise_batch_size", "alpha")
        optima = [
            {
                "batch_size": entry.batch_size,
                "lr": entry.lr,
                "interval": list(entry.interval(half)),
                "at_grid_edge": entry.edge != 0,
            }
            for entry, half in zip(self.optima, self.half_widths, strict=True)
        ]
        numbers = {name: asdict(getattr(self, name)) for name in names}
        return {"trend": str(self.trend), "scatter": self.scatter, **numbers, "optima": optima}

    def _quantity(self, values: Array) -> Quantity:
        return Quantity(value=float(values[0]), interval=self._ends(values)) if len(values) else Quantity()

    def _ends(self, values: Array) -> tuple[float, float]:
        low, high = np.quantile(values[1:], [0.5 - self.confidence / 2, 0.5 + self.confidence / 2])
        return float(low), float(high)


def learning_rate_law(studies: Sequence[Study], *, confidence: float, resamples: int, seed: int) -> Law:
    """The optima and the law through them.

    The variance of an optimum is that of seeds, pooled over batch sizes, or what the grid leaves open, where that is
    larger. All are then scaled alike, by how much the optima scatter around the law and by the seeds, each with its
    degrees of freedom. The resamples are normal draws around the law, widened by Student's t, and refitted.

    Args:
        studies: of one optimizer at one target, by increasing batch size.
        confidence: of every interval.
        resamples: of the law.
        seed: of all random numbers.
    """
    rng = np.random.default_rng(seed)
    optima = tuple(entry for entry in (optimum(study, rng) for study in studies) if entry is not None)
    used = [entry for entry in optima if not entry.edge]
    freedom = sum(entry.seeds - 1 for entry in used)
    pooled = sum((entry.seeds - 1) * entry.seed_variance for entry in used) / max(freedom, 1)
    deviations = np.sqrt([max(pooled / entry.seeds, entry.grid_variance) for entry in optima])
    normal = float(ndtri(0.5 + confidence / 2))
    if len(used) < LEAST:
        scale = widening(freedom, confidence) if freedom else math.nan
        return Law(optima=optima, half_widths=deviations * scale * normal, confidence=confidence)
    logs, vertices = np.log([entry.batch_size for entry in used]), np.array([entry.log_lr for entry in used])
    noise = deviations[[not entry.edge for entry in optima]]
    weights = noise**-2 / (noise**-2).sum()
    level, log_noise, power = _fit(vertices[None], weights, logs)
    fitted = level[:, None] + power[:, None] * _shape(log_noise[:, None], logs)
    left = len(used) - (3 if np.isfinite(log_noise[0]) and abs(power[0]) < _STEEPEST else 2)
    scatter = math.sqrt((float((((vertices - fitted[0]) / noise) ** 2).sum()) + freedom) / (left + freedom))
    scale = max(_QUIETEST, scatter) * widening(left + freedom, confidence)
    rows = np.vstack([vertices, fitted + scale * noise * rng.standard_normal((resamples, len(used)))])
    level, log_noise, power = _fit(rows, weights, logs)
    across = (logs - logs @ weights) * weights
    return Law(
        optima=optima,
        half_widths=scale * deviations * normal,
        confidence=confidence,
        scatter=scatter,
        slopes=rows @ across / (across @ logs),
        log_max_lr=level,
        log_noise=log_noise,
        powers=power,
    )


def _shape(log_noise: Array, logs: Array) -> Array:
    """``-ln(1 + B_n/B)``; ``ln B`` where ``B_n`` is infinite."""
    finite = np.where(np.isfinite(log_noise), log_noise, 0.0)
    return np.asarray(np.where(np.isfinite(log_noise), -np.logaddexp(0.0, finite - logs), logs))


def _fit(rows: Array, weights: Array, logs: Array) -> tuple[Array, Array, Array]:
    """Least squares of every row of ``rows`` ``[R, M]`` with ``weights`` that sum to 1: level, ln B_n and alpha, shape
    ``[R]`` each. The fit is linear at a given ``B_n``, and all of a grid are tried."""
    reach = math.log(_REACH)
    noise = np.append(np.arange(logs[0] - reach, logs[-1] + reach, 0.05), np.inf)
    shapes = _shape(noise[:, None], logs)
    means, centre = shapes @ weights, rows @ weights
    shapes = shapes - means[:, None]
    product, square = (rows - centre[:, None]) @ (shapes * weights).T, shapes**2 @ weights
    powers = np.clip(product / square, -_STEEPEST, _STEEPEST)
    best = (powers * (powers * square - 2 * product)).argmin(axis=1)
    power = powers[np.arange(len(rows)), best]
    return centre - power * means[best], noise[best], power
