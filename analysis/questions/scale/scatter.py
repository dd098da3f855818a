r"""Scatter of points around a linear law beyond their own errors.

The model is :math:`y = X \beta + e + u + v` with errors :math:`e` of known covariance, a scatter :math:`u` of every
point and a scatter :math:`v` common to the points of the same runs. Both variances maximise the restricted likelihood
(Patterson and Thompson 1971; random-effects meta-regression).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array

FLOOR = 1e-12
"""Variance (of a logarithm) added to every point, the square of a relative error of 1e-6, to keep exact points
solvable."""

_LARGEST = 100.0
"""Largest scatter in the search, as a multiple of the variance of the unweighted residuals."""

_GRID = 60


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Standard deviations beyond the points' own errors.

    Attributes:
        of_points: standard deviation independent between points.
        of_runs: standard deviation common to points of the same runs; 0 if every run has one point or all points are
            from one run.
    """

    of_points: float
    of_runs: float

    @property
    def total(self) -> float:
        return float(np.hypot(self.of_points, self.of_runs))

    def covariance(self, runs: np.ndarray) -> Array:
        """Return the covariance matrix, shape ``[n, n]``."""
        return self.of_points**2 * np.eye(len(runs)) + self.of_runs**2 * same(runs)

    def draw(self, runs: np.ndarray, rows: int, rng: np.random.Generator) -> Array:
        """Return normal draws of shape ``[rows, n]``."""
        distinct, run = np.unique(runs, return_inverse=True)
        common = rng.standard_normal((rows, len(distinct)))[:, run]
        return self.of_points * rng.standard_normal((rows, len(runs))) + self.of_runs * common


def same(runs: np.ndarray) -> Array:
    """Return a matrix with 1 where two points are from the same runs, otherwise 0; shape ``[n, n]``."""
    return np.equal.outer(runs, runs).astype(float)


def estimate(y: Array, design: Array, errors: Array, runs: np.ndarray) -> Scatter:
    """Estimate the scatter by restricted maximum likelihood.

    Arguments are ``y`` ``[n]``, a ``design`` ``[n, p]`` of full rank p < n, the covariance of the points' own errors
    ``[n, n]``, and the runs that every point is from ``[n]``.
    """
    from scipy.optimize import minimize

    unit = max(_variance(y, design), FLOOR)
    parts = [np.eye(len(y))]
    if 1 < len(np.unique(runs)) < len(y):
        parts.append(same(runs))

    def cost(shares: Array) -> float:
        return minus_log_likelihood(
            y, design, errors + sum(unit * share * part for share, part in zip(shares, parts, strict=True))
        )

    bounds = [(0.0, _LARGEST)] * len(parts)
    starts = itertools.product((0.0, 0.7), repeat=len(parts))
    minima = [minimize(cost, start, method="L-BFGS-B", bounds=bounds) for start in starts]
    shares = min(minima, key=lambda result: result.fun).x
    return Scatter(
        of_points=float(np.sqrt(unit * shares[0])), of_runs=float(np.sqrt(unit * shares[1])) if len(parts) > 1 else 0.0
    )


def plausible(
    y: Array, design: Array, errors: Array, runs: np.ndarray, scatter: Scatter, rows: int, rng: np.random.Generator
) -> Array:
    r"""Draw the total scatter, shape ``[rows]``: plausible values although a smaller one may fit best.

    Draws are from the restricted likelihood times :math:`1/(\bar\sigma^2 + \tau^2)`, with :math:`\bar\sigma^2` the mean
    variance of the points' own errors. If these are 0, a new point then has the Student t distribution of ordinary
    regression. The scatter is divided between points and runs as in ``scatter``.
    """
    own = float(np.trace(errors)) / len(y) + FLOOR
    unit = max(_variance(y, design), own)
    variances = np.concatenate([[0.0], np.geomspace(1e-3, _LARGEST, _GRID) * unit])
    shape = scatter.covariance(runs) / scatter.total**2 if scatter.total else np.eye(len(y))
    cost = np.array([minus_log_likelihood(y, design, errors + variance * shape) for variance in variances])
    density = np.exp(cost.min() - cost) / (own + variances)
    mass = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(variances))])
    return np.sqrt(np.interp(rng.random(rows) * mass[-1], mass, variances))


def minus_log_likelihood(y: Array, design: Array, covariance: Array) -> float:
    """Return minus the restricted log likelihood, without its constant."""
    squares, logs = generalised(y, design, covariance + FLOOR * np.eye(len(y)))
    return logs + 0.5 * squares


def generalised(y: Array, design: Array, covariance: Array) -> tuple[float, float]:
    """Return the weighted sum of squared residuals of generalised least squares, and half the logarithm of the
    determinants of ``covariance`` and of the normal matrix."""
    root = np.linalg.cholesky(covariance)
    whitened = np.linalg.solve(root, np.column_stack([design, y]))
    q, r = np.linalg.qr(whitened[:, :-1])
    residual = whitened[:, -1] - q @ (q.T @ whitened[:, -1])
    return float(residual @ residual), float(np.log(np.diag(root)).sum() + np.log(np.abs(np.diag(r))).sum())


def _variance(y: Array, design: Array) -> float:
    """Return the variance of the residuals of ordinary least squares."""
    n, p = design.shape
    return generalised(y, design, np.eye(n))[0] / (n - p)
