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
    theta, least, unit = start.copy(), np.empty(len(start)), np.eye(start.shape[1])
    live, now, damping = np.arange(len(start)), start.copy(), np.full(len(start), 1e-3)
    cost, slope, square = normal(now, live)
    for _ in range(steps):
        # a parameter at the end of the box that would leave it takes no part in the step
        held = ((now <= box[0]) & (slope >= 0)) | ((now >= box[1]) & (slope <= 0))
        damped = square + (square * damping[:, None, None] + 1e-300) * unit
        damped = np.where(held[:, :, None] | held[:, None, :], unit, damped)
        step = np.linalg.solve(damped, np.where(held, 0.0, slope)[..., None])[..., 0]
        trial = np.clip(now - step, *box)
        tried = normal(trial, live)
        better = tried[0] <= cost
        moving = np.abs(trial - now).max(axis=1) >= _CONVERGED
        for kept, new in zip((now, cost, slope, square), (trial, *tried), strict=True):
            kept[better] = new[better]
        damping = np.clip(damping * np.where(better, 0.1, 10.0), 1e-12, 1e12)
        theta[live], least[live] = now, cost
        live, now, damping = live[moving], now[moving], damping[moving]
        cost, slope, square = cost[moving], slope[moving], square[moving]
        if not len(live):
            break
    return theta, least
