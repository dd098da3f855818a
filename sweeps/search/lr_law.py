r"""Where the best learning rate of the next batch size should lie, by those of the batch sizes before it.

A straight line of ln lr over ln B, seen from the batch size asked for: a point counts less the farther away it is,
because the line bends (it saturates at the noise scale: McCandlish et al. 2018, arXiv 1812.06162, equation 2.6), and
the slope is held near the rules of practice, 1/2 (square root) give or take as much as to 0 (none) or 1 (linear).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SLOPE, SLOPE_DEVIATION = 0.5, 0.4
"""Prior of the slope."""

DRIFT = 0.15
"""Standard deviation by which ln lr leaves a straight line over one e-fold of the batch size."""


@dataclass(frozen=True)
class Expected:
    """Best learning rate at a batch size by the law: ln of it, and its standard deviation."""

    log_lr: float
    deviation: float


def expected(
    at: float,
    log_sizes: Sequence[float],
    log_lrs: Sequence[float],
    variances: Sequence[float],
    *,
    slope: float = SLOPE,
) -> Expected:
    """The law at ``at``, in ln batch size, by generalised least squares.

    Args:
        at: ln of the batch size asked for.
        log_sizes, log_lrs, variances: ln batch size, ln of its best learning rate and the variance of that, shape
            ``[M]`` each, ``M`` at least 1.
        slope: its prior, give or take :data:`SLOPE_DEVIATION`.
    """
    distance = np.asarray(log_sizes, dtype=float) - at
    weight = 1.0 / (np.asarray(variances, dtype=float) + (DRIFT * distance) ** 2)
    normal = np.array([[weight.sum(), weight @ distance], [weight @ distance, weight @ distance**2]])
    right = np.array([weight @ np.asarray(log_lrs), (weight * distance) @ np.asarray(log_lrs)])
    normal[1, 1] += 1.0 / SLOPE_DEVIATION**2
    right[1] += slope / SLOPE_DEVIATION**2
    covariance = np.linalg.inv(normal)
    return Expected(float((covariance @ right)[0]), float(np.sqrt(covariance[0, 0])))
