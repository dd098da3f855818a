r"""Least-squares fit of the steps-examples hyperbola, for thousands of curves at once.

The model is :math:`\ln S = \ln(S_{min} + E_{min}/B)`, see :mod:`analysis.estimate.curves`. Residuals are in log
steps. For a given :math:`c = \ln B_{crit}` the best :math:`\ln S_{min}` is a mean, so one parameter is left: the fit brackets it on
a grid and finishes with Newton steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.curves import saturation

REACH = 100.0
"""How far beyond the measured batch sizes a critical batch size is looked for. Further out the curve differs by less
than 1 % from perfect scaling (or from a plateau) at every measured batch size, and the answer is infinity (or 0)."""

_GRID_STEP = 0.25
_NEWTON_STEPS = 60
_CONVERGED = 1e-12
_NEARLY = 1e-6
"""Of a Newton step: its error is about the square of this."""


@dataclass(frozen=True)
class Hyperbola:
    """Fitted asymptotes, scalars or one per resample.

    Attributes:
        min_steps: optimizer updates; 0 where the data show perfect scaling only.
        min_examples: examples; 0 where the data show a plateau only.
    """

    min_steps: Array
    min_examples: Array

    @property
    def log_critical(self) -> Array:
        """``ln(min_examples / min_steps)``; infinite where one of them is 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.min_examples) - np.log(self.min_steps))


def fit_hyperbola(
    batch_sizes: Array,
    log_steps: Array,
    weights: Array | None = None,
    *,
    reach: Array | None = None,
    start: Hyperbola | None = None,
) -> Hyperbola:
    """Weighted least squares in log steps.

    Args:
        batch_sizes: shape ``[M]``, at least two distinct values.
        log_steps: shape ``[M]`` or ``[R, M]``.
        weights: shape ``[M]`` or ``[R, M]``; equal when absent.
        reach: the batch sizes that :data:`REACH` counts from; ``batch_sizes`` when absent.
        start: where to look for the minimum, in place of a grid.

    Returns:
        Scalars or shape ``[R]``. ``min_examples`` is 0, or ``min_steps`` is 0, where the best critical batch size lies
        beyond :data:`REACH`.
    """
    x = np.log(np.asarray(batch_sizes, dtype=float))
    y = np.atleast_2d(np.asarray(log_steps, dtype=float))
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=float)
    w = w / w.sum(axis=-1, keepdims=True)
    measured = x if reach is None else np.log(np.asarray(reach, dtype=float))
    low, high = measured.min() - math.log(REACH), measured.max() + math.log(REACH)
    level = _mean(w, y)
    centred = y - level[:, None]
    if start is None:
        grid = np.linspace(low, high, math.ceil((high - low) / _GRID_STEP) + 1)
        c, below, above = _bracket(x, centred, w, grid)
    else:
        c = np.clip(np.broadcast_to(start.log_critical, len(y)), low, high)
        below, above = np.full(len(y), low), np.full(len(y), high)
    c = _polish(x, centred, w, c, below, above)
    log_min_steps = level - _mean(w, saturation(x, c[:, None]))
    plateau, perfect = c < low + 1e-6, c > high - 1e-6
    min_steps = np.where(plateau, np.exp(level), np.where(perfect, 0.0, np.exp(log_min_steps)))
    min_examples = np.where(perfect, np.exp(level + _mean(w, x)), np.where(plateau, 0.0, np.exp(log_min_steps + c)))
    if np.ndim(log_steps) == 1:
        min_steps, min_examples = min_steps[0], min_examples[0]
    return Hyperbola(min_steps, min_examples)


def predicted(batch_sizes: Array, hyperbola: Hyperbola) -> Array:
    """``ln S`` of the fit, shape ``[M]``, or ``[R, M]`` for resamples."""
    steps, examples = np.asarray(hyperbola.min_steps), np.asarray(hyperbola.min_examples)
    return np.log(steps[..., None] + examples[..., None] / np.asarray(batch_sizes, dtype=float))


def _mean(w: Array, values: Array) -> Array:
    """Weighted mean over batch sizes; either may have a row for all or one row each."""
    # einsum, not BLAS: threads cost more than they gain on rows this short
    return np.asarray(np.einsum("...m,...m->...", w, values))


def _products(rows: Array, shape: Array) -> Array:
    """Sum over batch sizes of ``rows`` ``[R, M]`` with every row of ``shape`` ``[G, M]``, shape ``[R, G]``."""
    return np.asarray(np.einsum("rm,mg->rg", rows, np.ascontiguousarray(shape.T)))


def _bracket(x: Array, centred: Array, w: Array, grid: Array) -> tuple[Array, Array, Array]:
    """Where the parabola through the least profiled sum of squares on ``grid`` and its neighbours is least, for every
    row, and these neighbours."""
    shape = saturation(x, grid[:, None])
    if w.ndim == 1:
        shape = shape - _mean(w, shape)[:, None]
        constant = _mean(w, shape**2)
    else:
        constant = _products(w, shape**2) - _products(w, shape) ** 2
    cost = constant - 2.0 * _products(centred * w, shape)
    best = cost.argmin(axis=1)
    before, after = np.maximum(best - 1, 0), np.minimum(best + 1, len(grid) - 1)
    rows = np.arange(len(cost))
    left, right = cost[rows, before] - cost[rows, best], cost[rows, after] - cost[rows, best]
    inside = (before < best) & (best < after) & (left + right > 0)
    shift = np.where(inside, 0.5 * (left - right) / np.where(inside, left + right, 1.0), 0.0)
    return grid[best] + shift * (grid[1] - grid[0]), grid[before], grid[after]


def _polish(x: Array, centred: Array, w: Array, c: Array, below: Array, above: Array) -> Array:
    """Newton steps in ``c``, kept inside the bracket by bisection; rows that have converged are left alone."""
    c, below, above = c.copy(), below.copy(), above.copy()
    live = np.arange(len(c))
    for _ in range(_NEWTON_STEPS):
        now = c[live]
        slope, curvature = _derivatives(x, centred[live], w if w.ndim == 1 else w[live], now)
        above[live] = np.where(slope > 0, now, above[live])
        below[live] = np.where(slope > 0, below[live], now)
        newton = now - slope / np.where(curvature > 0, curvature, np.inf)
        inside = (curvature > 0) & (newton >= below[live]) & (newton <= above[live])
        c[live] = np.where(inside, newton, 0.5 * (below[live] + above[live]))
        live = live[np.abs(c[live] - now) >= np.where(inside, _NEARLY, _CONVERGED)]
        if not len(live):
            break
    return c


def _derivatives(x: Array, centred: Array, w: Array, c: Array) -> tuple[Array, Array]:
    """First and second derivative in ``c`` of half the profiled sum of squares."""
    excess = np.exp(c[:, None] - x)
    shape, rise = np.log1p(excess), excess / (1.0 + excess)
    weighted = w * (centred - shape + _mean(w, shape)[:, None])
    centred_rise = rise - _mean(w, rise)[:, None]
    slope = -_mean(weighted, centred_rise)
    return slope, _mean(w, centred_rise**2) - _mean(weighted, rise * (1.0 - rise))
