r"""Whether the exponent of a curve may change with the batch size, so that no power law gives its critical one.

The curve has a log rise :math:`\ln(S/S_{min} - 1)` that bends at the critical batch size,

.. math:: -a u - 2 d \ln\cosh(u/2), \quad u = \ln(B/B_{crit}),

so that its local exponent goes from :math:`a - d` at small to :math:`a + d` at large batch sizes. It is fitted by least
squares, weighted by the pure error of seeds; d is then taken to follow Student's t with the degrees of freedom of the
seeds. If the exponent falls, the power law puts the plateau too high and the critical batch size too low, by more than
the interval covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares
from scipy.special import stdtr

from analysis.arrays import Array
from analysis.estimate.curves import StepsCurve
from analysis.estimate.fitting.bootstrap import Seeds
from analysis.estimate.fitting.data import LEAST_DEVIATION

FEWEST = 4
"""Smallest number of batch sizes: as many as the curve has parameters."""

FALL = 0.15
"""Falls of the exponent up to this are too small to matter; of exponents above 1, up to this times their square. Twice
as steep a curve is the same one on half the scale of ``ln B``: there a fall four times as large shifts ``ln B_crit`` by
half as much, and the interval is half as wide."""

_LOG_EXPONENT, _BEND = 0.75, 1.0
"""Standard deviations of the priors of ``ln a`` and ``d`` around 0, which keep them at 0 if only a plateau is seen."""


@dataclass(frozen=True)
class Bend:
    """How the exponent changes towards large batch sizes.

    Attributes:
        falls: probability that it falls by more than matters (:data:`FALL`).
        rises: probability that it rises.
        small, large: exponent towards small and towards large batch sizes.
    """

    falls: float
    rises: float
    small: float
    large: float


def bend(
    batch_sizes: Array, log_steps: Array, weights: Array, seeds: Seeds, grid: Array | float, power: StepsCurve
) -> Bend | None:
    """Fit the curve that bends; ``None`` below :data:`FEWEST` batch sizes, or with one seed.

    Args:
        batch_sizes, log_steps: batch sizes, and means of the log steps over seeds, shape ``[M]``.
        weights: numbers of seeds, shape ``[M]``.
        seeds: variance of a seed and its degrees of freedom.
        grid: variance of the mean log steps due to the spacing of learning rates, shape ``[M]`` or scalar.
        power: the fitted power law, scalars, from which the search starts.
    """
    if len(batch_sizes) < FEWEST or not seeds.freedom:
        return None
    logs = np.log(batch_sizes)
    error = np.sqrt(max(seeds.variance, LEAST_DEVIATION**2) / weights + grid)

    def residuals(at: Array) -> Array:
        level, critical, log_exponent, d = at
        u = logs - critical
        twice = np.logaddexp(u / 2.0, -u / 2.0) - math.log(2.0)  # ln cosh(u/2)
        curve = level + np.logaddexp(0.0, -math.exp(log_exponent) * u - 2.0 * d * twice)
        return np.append((log_steps - curve) / error, [log_exponent / _LOG_EXPONENT, d / _BEND])

    middle = float(np.clip(power.log_critical, logs[0], logs[-1]))
    start = [float(log_steps.min()), middle, math.log(float(power.exponent)), 0.0]
    found = least_squares(residuals, start, method="lm")
    exponent, d = math.exp(found.x[2]), float(found.x[3])
    deviation = math.sqrt(np.linalg.pinv(found.jac.T @ found.jac)[3, 3])
    least = FALL / 2.0 * max(1.0, float(power.exponent)) ** 2
    falls = float(stdtr(seeds.freedom, (-d - least) / deviation))
    return Bend(falls, float(stdtr(seeds.freedom, d / deviation)), exponent - d, exponent + d)
