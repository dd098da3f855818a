r"""Least-squares fit of :class:`analysis.estimate.curves.StepsCurve`, for thousands of curves at once.

Residuals are in log steps. The prior of the exponent enters as one more observation of its logarithm, so the fit is the
most likely curve: without a prior the exponent is free; with an exact one it is fixed, and the curve is the hyperbola.
For a given exponent and :math:`\ln B_{crit}` the best :math:`\ln S_{min}` is a mean. The other two parameters are
located on a grid and refined by damped Gauss-Newton steps, :func:`minimized`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.curves import StepsCurve

REACH = 100.0
"""Factor by which the search for the critical batch size extends beyond the measured ones. Farther out the hyperbola
differs by less than 1 % from perfect scaling (or from a plateau) at every measured batch size, and the result is
infinity (or 0)."""

EXPONENTS = (0.2, 5.0)
"""Range of exponents that is searched; an interval that ends there is open."""

_GRID_STEP = 0.5
_GRID_EXPONENTS = 17
_STEPS = 80
_CONVERGED = 1e-9


@dataclass(frozen=True)
class Exponent:
    """Prior of the logarithm of the exponent.

    Attributes:
        log_mean: mean, shape ``[R]`` or scalar.
        variance: variance, shape ``[R]`` or scalar; 0 fixes the exponent (then in all rows), infinity leaves it free.
    """

    log_mean: Array | float = 0.0
    variance: Array | float = math.inf

    @property
    def held(self) -> bool:
        """Whether the exponent is fixed."""
        return bool(np.all(np.asarray(self.variance) == 0))

    def at(self, rows: np.ndarray) -> Exponent:
        """Return the prior of some rows, if there is one for each."""
        return Exponent(np.asarray(self.log_mean)[rows], np.asarray(self.variance)[rows])


FREE = Exponent()
HYPERBOLA = Exponent(variance=0.0)


def fit_curves(
    batch_sizes: Array,
    log_steps: Array,
    weights: Array | float = 1.0,
    *,
    exponent: Exponent = FREE,
    deviation: float = 1.0,
    reach: Array | None = None,
    start: StepsCurve | None = None,
    knee: float = 1.0,
) -> StepsCurve:
    """Fit the most likely curve to every row.

    Args:
        batch_sizes: shape ``[M]``, at least two distinct values.
        log_steps: shape ``[R, M]``.
        weights: number of seeds behind ``log_steps``, shape ``[M]`` or ``[R, M]``.
        exponent: prior of the exponent.
        deviation: standard deviation of the log steps of one seed, which weighs the data against the prior.
        reach: batch sizes from which :data:`REACH` counts; ``None`` for ``batch_sizes``.
        start: curves at which to start the search, instead of a grid.
        knee: knee of the curves, see :class:`analysis.estimate.curves.StepsCurve`.

    Returns:
        Curves of shape ``[R]``. If the best critical batch size lies beyond :data:`REACH`, it is 0 or infinity.
    """
    x = np.log(np.asarray(batch_sizes, dtype=float))[:, None]
    measured = x if reach is None else np.log(np.asarray(reach, dtype=float))
    low, high = measured.min() - math.log(REACH), measured.max() + math.log(REACH)
    ends = (0.0, 0.0) if exponent.held else (math.log(EXPONENTS[0]), math.log(EXPONENTS[1]))
    box = np.array([[low, ends[0]], [high, ends[1]]])
    precision = 0.0 if exponent.held else deviation**2 / np.asarray(exponent.variance)
    near = None
    if start is not None:
        near = np.stack(np.broadcast_arrays(start.log_critical, np.log(start.exponent)), axis=-1)
    theta, level = profiled(
        functools.partial(_shape, x, knee),
        log_steps,
        weights,
        box,
        cells=(math.ceil((high - low) / _GRID_STEP) + 1, _GRID_EXPONENTS),
        start=near,
        mean=exponent.log_mean,
        precision=precision,
    )
    c = theta[:, 0]
    bounded = np.where(c < low + 1e-6, 0.0, np.where(c > high - 1e-6, np.inf, np.exp(c)))
    return StepsCurve(level, c, np.exp(theta[:, 1]), bounded, np.asarray(knee))


def _shape(x: Array, knee: float, theta: Array) -> tuple[Array, Array, Array]:
    """Return ``ln(S/S_min)`` and its derivatives at log batch sizes ``[M, 1]``; parameters: ``ln B_crit``, log
    exponent."""
    distance, exponent = theta[:, 0] - x, np.exp(theta[:, 1])
    log_rise = math.log(2.0**knee - 1.0) + knee * exponent * distance
    tail = np.exp(-np.abs(log_rise))
    rise = exponent * np.where(log_rise > 0, 1.0, tail) / (1.0 + tail)
    return (np.maximum(log_rise, 0.0) + np.log1p(tail)) / knee, rise, rise * distance


def profiled(
    shape: Callable[[Array], tuple[Array, Array, Array]],
    rows: Array,
    weights: Array | float,
    box: Array,
    *,
    cells: tuple[int, int],
    start: Array | None = None,
    mean: Array | float = 0.0,
    precision: Array | float = 0.0,
) -> tuple[Array, Array]:
    """Fit curves that are a shape with two parameters plus a level, which is profiled out, by least squares.

    Args:
        shape: function from parameters ``[R, 2]`` to the shape and its two derivatives, ``[M, R]`` each.
        rows: values to fit, shape ``[R, M]``.
        weights: weights, shape ``[M]`` or ``[R, M]``.
        box: lower and upper bounds of both parameters, shape ``[2, 2]``.
        cells: numbers of points of the grid over the box; the search starts from the best point.
        start: starting point to use instead of the grid.
        mean, precision: mean of the prior of the second parameter, and its precision in units of a row of weight 1.

    Returns:
        The parameters, shape ``[R, 2]``, and the levels, shape ``[R]``.
    """
    y = np.ascontiguousarray(np.asarray(rows, dtype=float).T)
    w = np.broadcast_to(np.asarray(weights, dtype=float), y.T.shape)
    total = w.sum(axis=1)
    w = np.ascontiguousarray((w / total[:, None]).T)
    wanted, pull = (np.broadcast_to(np.asarray(each, dtype=float), len(total)) for each in (mean, precision / total))

    def normal(theta: Array, live: np.ndarray) -> tuple[Array, Array, Array]:
        values, *derivatives = shape(theta)
        parts, its_weights, its_pull = np.array([values - y[:, live], *derivatives]), w[:, live], pull[live]
        parts -= np.einsum("mr,pmr->pr", its_weights, parts)[:, None]
        products = np.einsum("pmr,qmr->rpq", its_weights * parts, parts)
        beyond = theta[:, 1] - wanted[live]
        products[:, 0, 0] += its_pull * beyond**2
        products[:, 0, 2] += its_pull * beyond
        products[:, 2, 2] += its_pull
        return products[:, 0, 0], products[:, 0, 1:], products[:, 1:, 1:]

    if start is None:
        ends = zip(*box.tolist(), cells, strict=True)
        axes = (np.linspace(low, high, count if high > low else 1) for low, high, count in ends)
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
        there = shape(grid)[0]
        cost = w.T @ there**2 - (w.T @ there) ** 2 - 2.0 * (w * (y - (w * y).sum(axis=0))).T @ there
        cost += pull[:, None] * (grid[:, 1] - wanted[:, None]) ** 2
        start = grid[cost.argmin(axis=1)]
    begun = np.clip(np.broadcast_to(start, (len(total), 2)), *box)
    theta, _ = minimized(normal, begun, box, steps=_STEPS)
    return theta, np.einsum("mr,mr->r", w, y - shape(theta)[0])


def information(batch_sizes: Array, curve: StepsCurve, weights: Array) -> Array:
    """Return the Fisher information on ``ln B_crit`` and the log exponent for unit standard deviation per seed.

    ``ln S_min`` is profiled out; the shape is ``[2, 2]``. ``curve`` is a single curve; ``weights`` are numbers of
    seeds, shape ``[M]``.
    """
    theta = np.array([[float(curve.log_critical), math.log(float(curve.exponent))]])
    x = np.log(np.asarray(batch_sizes, dtype=float))[:, None]
    derivatives = np.hstack(_shape(x, float(curve.knee), theta)[1:]).T
    centred = derivatives - (derivatives @ weights / weights.sum())[:, None]
    return np.asarray((centred * weights) @ centred.T)


Normal = Callable[[Array, np.ndarray], tuple[Array, Array, Array]]
"""Function from parameters ``[R, p]`` and the indices of the problems ``[R]`` to the sum of squares ``[R]``, half its
gradient ``[R, p]``, and half its Hessian ``[R, p, p]`` to first order."""


def regression(value: Callable[[Array], tuple[Array, Array]], rows: Array, weights: Array | float = 1.0) -> Normal:
    """Return the least-squares problem of ``rows`` ``[R, n]`` with ``weights`` ``[n]`` for :func:`minimized`.

    ``value`` maps parameters ``[R, p]`` to the model values, shape ``[R, n]``, and their derivatives, ``[R, n, p]``.
    """

    def normal(theta: Array, live: np.ndarray) -> tuple[Array, Array, Array]:
        values, slopes = value(theta)
        left, across = rows[live] - values, (np.reshape(weights, (-1, 1)) * slopes).swapaxes(1, 2)
        return (left**2 * weights).sum(axis=1), -(across @ left[..., None])[..., 0], across @ slopes

    return normal


def minimized(normal: Normal, start: Array, box: Array, *, steps: int) -> tuple[Array, Array]:
    """Return the parameters with the least sum of squares, shape ``[R, p]``, and this sum, shape ``[R]``.

    Args:
        normal: the problems; those that have converged are not evaluated again.
        start: starting points inside the box, shape ``[R, p]``.
        box: lower and upper bounds of every parameter, shape ``[2, p]``; equal bounds fix a parameter.
        steps: largest number of steps.
    """
    theta, least, unit = start.copy(), np.empty(len(start)), np.eye(start.shape[1])
    live, now, damping = np.arange(len(start)), start.copy(), np.full(len(start), 1e-3)
    cost, slope, square = normal(now, live)
    for _ in range(steps):
        # a parameter at a bound that would leave the box takes no part in the step: its own ends in the bound again
        held = ((now <= box[0]) & (slope >= 0)) | ((now >= box[1]) & (slope <= 0))
        damped = square + (square * damping[:, None, None] + 1e-300) * unit
        if held.any():
            damped = np.where(held[:, :, None] | held[:, None, :], unit, damped)
        step = np.linalg.solve(damped, slope[..., None])[..., 0]
        trial = np.minimum(np.maximum(now - step, box[0]), box[1])
        tried = normal(trial, live)
        better, moving = tried[0] <= cost, (np.abs(trial - now) >= _CONVERGED).any(axis=1)
        damping = np.minimum(np.maximum(damping * np.where(better, 0.1, 10.0), 1e-12), 1e12)
        if better.all():
            now, cost, slope, square = trial, *tried
        else:
            for kept, new in zip((now, cost, slope, square), (trial, *tried), strict=True):
                kept[better] = new[better]
        if moving.all():
            continue
        ended = ~moving
        theta[live[ended]], least[live[ended]] = now[ended], cost[ended]
        live, now, damping = live[moving], now[moving], damping[moving]
        cost, slope, square = cost[moving], slope[moving], square[moving]
        if not len(live):
            break
    theta[live], least[live] = now, cost
    return theta, least
