r"""Predict the best learning rate at the next batch size from the batch sizes searched before it.

The prediction is a straight line of ln lr over ln B, fitted from the point of view of the batch size asked for: a point
counts less the farther away it is, because the true relation bends (it saturates at the noise scale: McCandlish et al.
2018, arXiv 1812.06162, equation 2.6). The slope has a prior around the rule of thumb 1/2 (square root) that is wide
enough to include 0 (no dependence) and 1 (linear).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

SLOPE, SLOPE_DEVIATION = 0.5, 0.4
"""Mean and standard deviation of the prior of the slope."""

DRIFT = 0.15
"""Standard deviation by which ln lr departs from a straight line per e-fold of the batch size."""


@dataclass(frozen=True)
class Expected:
    """Predicted best learning rate at a batch size: its logarithm and the standard deviation of that."""

    log_lr: float
    deviation: float

    def side(self, log_lr: float) -> int:
        """Return on which side of a learning rate it lies: 1 above it or there, -1 below it."""
        return 1 if self.log_lr >= log_lr else -1


def expected(
    at: float,
    log_sizes: ArrayLike,
    log_lrs: ArrayLike,
    variances: ArrayLike,
    *,
    slope: float = SLOPE,
) -> Expected:
    """Predict the best learning rate at one batch size by generalised least squares.

    Args:
        at: ln of the batch size asked for.
        log_sizes, log_lrs, variances: ln batch size, ln of its best learning rate and the variance of the latter, shape
            ``[M]`` each, ``M`` at least 1.
        slope: mean of the prior of the slope; its standard deviation is :data:`SLOPE_DEVIATION`.
    """
    distance = np.asarray(log_sizes, dtype=float) - at
    weight = 1.0 / (np.asarray(variances, dtype=float) + (DRIFT * distance) ** 2)
    normal = np.array([[weight.sum(), weight @ distance], [weight @ distance, weight @ distance**2]])
    right = np.array([weight @ np.asarray(log_lrs), (weight * distance) @ np.asarray(log_lrs)])
    normal[1, 1] += 1.0 / SLOPE_DEVIATION**2
    right[1] += slope / SLOPE_DEVIATION**2
    covariance = np.linalg.inv(normal)
    return Expected(float((covariance @ right)[0]), float(np.sqrt(covariance[0, 0])))
