"""Least squares for thousands of small problems at once: damped Gauss-Newton steps inside a box."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from analysis.arrays import Array

_CONVERGED = 1e-9

Normal = Callable[[Array, np.ndarray], tuple[Array, Array, Array]]
"""Of the parameters ``[R, p]`` of the problems ``[R]`` with these numbers: sum of squares ``[R]``, half its slope
``[R, p]``, half its curvature ``[R, p, p]`` to first order."""


def minimized(normal: Normal, start: Array, box: Array, *, steps: int) -> tuple[Array, Array]:
    """The parameters of least sum of squares, shape ``[R, p]``, and this sum, shape ``[R]``.

    Args:
        normal: the problems; those that have converged are not asked again.
        start: inside the box, shape ``[R, p]``.
        box: lowest and highest value of every parameter, which hold it where they are equal; shape ``[2, p]``.
        steps: at most so many.
    """
    theta, unit = start.copy(), np.eye(start.shape[1])
    damping, live = np.full(len(theta), 1e-3), np.arange(len(theta))
    cost, slope, square = normal(theta, live)
    for _ in range(steps):
        now = theta[live]
        # a parameter at the end of the box that would leave it takes no part in the step
        held = ((now <= box[0]) & (slope[live] >= 0)) | ((now >= box[1]) & (slope[live] <= 0))
        damped = square[live] * (1.0 + damping[live, None, None] * unit) + 1e-300 * unit
        damped = np.where(held[:, :, None] | held[:, None, :], unit, damped)
        step = np.linalg.solve(damped, np.where(held, 0.0, slope[live])[..., None])[..., 0]
        trial = np.clip(now - step, *box)
        tried = normal(trial, live)
        better = tried[0] <= cost[live]
        theta[live] = np.where(better[:, None], trial, now)
        for kept, new in zip((cost, slope, square), tried, strict=True):
            kept[live[better]] = new[better]
        damping[live] = np.clip(damping[live] * np.where(better, 0.1, 10.0), 1e-12, 1e12)
        live = live[np.abs(trial - now).max(axis=1) >= _CONVERGED]
        if not len(live):
            break
    return theta, cost
