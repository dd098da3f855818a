r"""Test whether the exponent of a curve falls towards large batch sizes, which none of the forms can do.

The power law is compared with a curve whose log rise :math:`\ln(S/S_{min} - 1)` bends at the critical batch size,

.. math:: -a u - 2 d \ln\cosh(u/2), \quad u = \ln(B/B_{crit}),

so that its local exponent goes from :math:`a - d` at small to :math:`a + d` at large batch sizes. The comparison is the
one-sided F test of one more parameter against pure error. If the exponent falls, the fit puts the plateau too high and
the critical batch size too low, by more than the interval covers; if it rises, as at a sharp knee, the forms cover it.
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

FEWEST = 6
"""Smallest number of batch sizes; with fewer, four parameters leave too little."""

_LOG_EXPONENT, _BEND = 0.75, 1.0
"""Standard deviations of the priors of ``ln a`` and ``d`` around 0, which keep them at 0 if only a plateau is seen."""


@dataclass(frozen=True)
class Bend:
    """How far the exponent falls towards large batch sizes.

    Attributes:
        probability: probability of a fall at least as clear as this one if the exponent is the same everywhere.
        small, large: exponent towards small and towards large batch sizes.
    """

    probability: float
    small: float
    large: float


def bend(
    batch_sizes: Array, log_steps: Array, weights: Array, seeds: Seeds, grid: float, power: StepsCurve
) -> Bend | None:
    """Fit the curve that bends; ``None`` below :data:`FEWEST` batch sizes, or with one seed.

    Args:
        batch_sizes, log_steps: batch sizes, and means of the log steps over seeds, shape ``[M]``.
        weights: numbers of seeds, shape ``[M]``.
        seeds: variance of a seed and its degrees of freedom.
        grid: as for :func:`analysis.estimate.fitting.misfit.lack_of_fit`.
        power: the fitted power law, scalars.
    """
    if len(batch_sizes) < FEWEST or not seeds.freedom:
        return None
    logs = np.log(batch_sizes)
    error = np.sqrt(max(seeds.variance, LEAST_DEVIATION**2) / weights + grid)
    middle = float(np.clip(power.log_critical, logs[0], logs[-1]))

    def residuals(at: Array) -> Array:
        level, critical, log_exponent, fall = at if len(at) == 4 else (*at, 0.0)
        u = logs - critical
        curve = level + np.logaddexp(0.0, -math.exp(log_exponent) * u - 2.0 * fall * np.log(np.cosh(u / 2.0)))
        return np.append((log_steps - curve) / error, [log_exponent / _LOG_EXPONENT, fall / _BEND])

    start = [float(log_steps.min()), middle, math.log(float(power.exponent))]
    straight = least_squares(residuals, start, method="lm")
    bent = least_squares(residuals, [*straight.x, 0.0], method="lm")
    exponent, d = math.exp(bent.x[2]), float(bent.x[3])
    t = math.copysign(math.sqrt(max(0.0, 2.0 * (straight.cost - bent.cost))), d)
    return Bend(float(stdtr(seeds.freedom, t)), exponent - d, exponent + d)
