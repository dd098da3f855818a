r"""The curve with a free exponent, :math:`S = a + b/B^\alpha`, beside the hyperbola (:math:`\alpha = 1`).

Zhang et al. (2024), "How Does Critical Batch Size Scale in Pre-training?" (arXiv 2410.21676), Definition 1 and the fits
behind it: :math:`\ln S = \ln(a + b/B^\alpha)` by least squares in log steps. Both terms are equal at
:math:`B_{crit} = (b/a)^{1/\alpha}`, where a run takes twice the fewest steps; with :math:`\alpha = 1` that is
:math:`E_{min}/S_{min}`. With another exponent examples to target have no minimum at small batch sizes, so the number
stands beside the critical batch size and does not replace it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.arrays import Array
from analysis.estimate.curves import saturation
from analysis.estimate.fitting import Fit, interval, widening
from analysis.estimate.fitting.censoring import fit_censored
from analysis.estimate.fitting.hyperbola import REACH
from cbs.store import finite_or_none

FEWEST = 4
"""Batch sizes below which three parameters leave no residual."""

EXPONENTS = (0.2, 5.0)
"""Exponents that are looked for; an interval that ends there is open."""

_GRID_STEP = 0.5
_GRID_EXPONENTS = 17
_STEPS = 60
_CONVERGED = 1e-7


@dataclass(frozen=True)
class PowerLaw:
    """Fitted parameters, shape ``[R]``.

    Attributes:
        log_min_steps: ``ln a``, optimizer updates.
        log_critical: ``ln (b/a)^(1/alpha)``, from the examples where both terms are equal; the end of where it was
            looked for, where it lies beyond.
        exponent: ``alpha``.
        critical: batch size in examples where both terms are equal; 0 or infinity where the data do not bound it.
    """

    log_min_steps: Array
    log_critical: Array
    exponent: Array
    critical: Array


@dataclass(frozen=True, kw_only=True)
class PowerEstimate:
    """The free exponent and its critical batch size.

    Attributes:
        exponent: ``alpha``.
        exponent_interval: of ``exponent``; an open end is ``None``.
        min_steps: ``a``, optimizer updates.
        critical: ``(b/a)^(1/alpha)`` in examples; ``None`` where the data do not bound it.
        critical_interval: of ``critical``.
        residual_rms: root of the weighted mean squared residual of the log steps.
    """

    exponent: float
    exponent_interval: tuple[float | None, float | None]
    min_steps: float
    critical: float | None
    critical_interval: tuple[float | None, float | None]
    residual_rms: float

    @property
    def differs(self) -> bool:
        """Whether the interval of the exponent leaves out 1."""
        low, high = self.exponent_interval
        return (low is not None and low > 1.0) or (high is not None and high < 1.0)

    @property
    def remark(self) -> str:
        """What has to be said beside the hyperbola; empty where the exponent may be 1."""
        if not self.differs:
            return ""
        low, high = ("" if end is None else f"{end:.2g}" for end in self.exponent_interval)
        return f"the exponent differs from 1: alpha = {self.exponent:.2g} [{low}, {high}]"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "exponent": self.exponent,
            "exponent_interval": list(self.exponent_interval),
            "min_steps": self.min_steps,
            "critical_batch_size": self.critical,
            "interval": list(self.critical_interval),
            "residual_rms": self.residual_rms,
        }


def power_law(fit: Fit, *, confidence: float = 0.95) -> PowerEstimate | None:
    """The curve with a free exponent through the data of ``fit``; ``None`` below :data:`FEWEST` batch sizes.

    The intervals are percentiles of refits to the draws of ``fit``, scaled to the residuals of this curve and scattered
    around it.
    """
    count = len(fit.batch_sizes)
    if fit.data is None or count < FEWEST:
        return None
    data = fit.data
    found = _fitted(fit, fit.deviation)
    curve = predicted_power(data.batch_sizes, found)[0]
    residuals = data.completed(curve[None], fit.deviation)[0] - curve
    square = float(data.all_weights @ residuals**2)
    deviation = math.sqrt(max(fit.seed_variance, square / (count - 3)))
    scale = widening(count - 3 + fit.seed_freedom, confidence) * deviation
    rows, latent = scale * fit.draws, curve[data.bounds.place] + scale * fit.latent_draws
    resampled = _fitted(fit, scale, curve + rows, latent)
    low, high = interval(resampled.exponent, confidence)
    ends = interval(resampled.critical, confidence)
    critical = float(found.critical[0])
    open_end = (ends[0] is None and critical < fit.batch_sizes[0]) or (
        ends[1] is None and critical > fit.batch_sizes[-1]
    )
    return PowerEstimate(
        exponent=float(found.exponent[0]),
        exponent_interval=(
            None if low is None or low < EXPONENTS[0] * 1.001 else low,
            None if high is None or high > EXPONENTS[1] / 1.001 else high,
        ),
        min_steps=math.exp(found.log_min_steps[0]),
        critical=None if open_end or critical == 0 else finite_or_none(critical),
        critical_interval=ends,
        residual_rms=math.sqrt(square / data.all_weights.sum()),
    )


def _fitted(fit: Fit, deviation: float, rows: Array | None = None, latent: Array | None = None) -> PowerLaw:
    data = fit.data
    if data is None:
        raise ValueError("the fit does not hold its data")
    sizes = data.batch_sizes
    return fit_censored(
        lambda y, w, start: fit_power(sizes, y, w, reach=fit.batch_sizes, start=start),
        lambda law: predicted_power(sizes, law),
        data.log_steps[None] if rows is None else rows,
        data.weights,
        data.bounds,
        deviation,
        latent,
    )


def predicted_power(batch_sizes: Array, law: PowerLaw) -> Array:
    """``ln S`` of the fit, shape ``[R, M]``."""
    x = np.log(np.asarray(batch_sizes, dtype=float))
    return law.log_min_steps[:, None] + saturation(
        law.exponent[:, None] * x, (law.exponent * law.log_critical)[:, None]
    )


def fit_power(
    batch_sizes: Array,
    log_steps: Array,
    weights: Array | None = None,
    *,
    reach: Array | None = None,
    start: PowerLaw | None = None,
) -> PowerLaw:
    """Weighted least squares in log steps over all three parameters.

    For a given exponent and ``c = ln B_crit`` the best ``ln a`` is a mean. The other two are bracketed on a grid and
    finished with damped Gauss-Newton steps (Levenberg-Marquardt), within :data:`EXPONENTS` and
    :data:`analysis.estimate.fitting.hyperbola.REACH`.

    Args:
        batch_sizes: shape ``[M]``, at least four distinct values.
        log_steps: shape ``[R, M]``.
        weights: shape ``[M]`` or ``[R, M]``; equal when absent.
        reach: the batch sizes that ``REACH`` counts from; ``batch_sizes`` when absent.
        start: where to look for the minimum, in place of a grid.
    """
    x = np.log(np.asarray(batch_sizes, dtype=float))
    y = np.asarray(log_steps, dtype=float)
    w = np.broadcast_to(1.0 if weights is None else np.asarray(weights, dtype=float), y.shape)
    w = w / w.sum(axis=1, keepdims=True)
    measured = x if reach is None else np.log(np.asarray(reach, dtype=float))
    box = np.array(
        [
            [measured.min() - math.log(REACH), math.log(EXPONENTS[0])],
            [measured.max() + math.log(REACH), math.log(EXPONENTS[1])],
        ]
    )
    if start is None:
        theta = _bracket(x, y, w, box)
    else:
        theta = np.stack([start.log_critical, np.log(start.exponent)], axis=1)
    theta = _polish(x, y, w, theta, box)
    level = np.einsum("rm,rm->r", w, y - _shape(x, theta)[0])
    c = theta[:, 0]
    bounded = np.where(c < box[0, 0] + 1e-6, 0.0, np.where(c > box[1, 0] - 1e-6, np.inf, np.exp(c)))
    return PowerLaw(level, c, np.exp(theta[:, 1]), bounded)


def _shape(x: Array, theta: Array) -> tuple[Array, Array]:
    """``ln(S/a)`` and its derivatives in ``c`` and ``ln alpha``, shapes ``[R, M]`` and ``[2, R, M]``."""
    distance, exponent = theta[:, :1] - x, np.exp(theta[:, 1:])
    rise = exponent / (1.0 + np.exp(-exponent * distance))
    return np.logaddexp(0.0, exponent * distance), np.stack([rise, rise * distance])


def _bracket(x: Array, y: Array, w: Array, box: Array) -> Array:
    """The point of a grid over the box with the least sum of squares for every row, shape ``[R, 2]``."""
    (low, smallest), (high, largest) = box.tolist()
    c = np.linspace(low, high, math.ceil((high - low) / _GRID_STEP) + 1)
    exponents = np.linspace(smallest, largest, _GRID_EXPONENTS)
    grid = np.stack([np.repeat(c, len(exponents)), np.tile(exponents, len(c))], axis=1)
    shape = np.ascontiguousarray(_shape(x, grid)[0].T)
    centred = w * (y - np.einsum("rm,rm->r", w, y)[:, None])
    cost = np.einsum("rm,mg->rg", w, shape**2) - np.einsum("rm,mg->rg", w, shape) ** 2
    return grid[(cost - 2.0 * np.einsum("rm,mg->rg", centred, shape)).argmin(axis=1)]


def _polish(x: Array, y: Array, w: Array, theta: Array, box: Array) -> Array:
    """Levenberg-Marquardt steps inside the box; rows that have converged are left alone."""
    theta = theta.copy()
    damping, live = np.full(len(theta), 1e-3), np.arange(len(theta))
    cost, slope, square = _normal(x, y, w, theta)
    for _ in range(_STEPS):
        now = theta[live]
        # a parameter at the end of the box that would leave it takes no part in the step
        held = ((now <= box[0]) & (slope[live] > 0)) | ((now >= box[1]) & (slope[live] < 0))
        damped = square[live] * (1.0 + damping[live, None, None] * np.eye(2)) + 1e-300 * np.eye(2)
        damped = np.where(held[:, :, None] | held[:, None, :], np.eye(2), damped)
        step = np.linalg.solve(damped, np.where(held, 0.0, slope[live])[..., None])[..., 0]
        trial = np.clip(now - step, *box)
        tried = _normal(x, y[live], w[live], trial)
        better = tried[0] <= cost[live]
        theta[live] = np.where(better[:, None], trial, now)
        for kept, new in zip((cost, slope, square), tried, strict=True):
            kept[live[better]] = new[better]
        damping[live] = np.clip(damping[live] * np.where(better, 0.1, 10.0), 1e-12, 1e12)
        live = live[np.abs(trial - now).max(axis=1) >= _CONVERGED]
        if not len(live):
            break
    return theta


def _normal(x: Array, y: Array, w: Array, theta: Array) -> tuple[Array, Array, Array]:
    """Sum of squares ``[R]``, and half its slope ``[R, 2]`` and curvature ``[R, 2, 2]`` to first order."""
    shape, derivatives = _shape(x, theta)
    residual = y - shape
    residual = residual - np.einsum("rm,rm->r", w, residual)[:, None]
    derivatives = derivatives - np.einsum("rm,prm->pr", w, derivatives)[..., None]
    weighted = w * derivatives
    return (
        np.einsum("rm,rm->r", w, residual**2),
        -np.einsum("prm,rm->rp", weighted, residual),
        np.einsum("prm,qrm->rpq", weighted, derivatives),
    )
