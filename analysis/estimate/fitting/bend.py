r"""Whether the exponent of a curve falls towards large batch sizes by more than the blunt forms hold.

Beside the power law stands the curve whose rise :math:`\ln(S/S_{min} - 1)` bends at the critical batch size,

.. math:: -a u - 2 d \ln\cosh(u/2), \quad u = \ln(B/B_{crit}),

so that its local exponent goes from :math:`a - d` at small to :math:`a + d` at large batch sizes. The two are compared
by the F test of one more parameter against pure error, on one side: where the exponent falls, the fit takes the plateau
for too high, and the critical batch size for too small, by more than the interval holds; where it rises, as with a
sharp knee, the forms hold it.
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
"""Batch sizes below which four parameters leave too little."""

_LOG_EXPONENT, _BEND = 0.75, 1.0
"""Standard deviations of ``ln a`` and ``d`` around 0, so that a plateau alone leaves them where they are."""


@dataclass(frozen=True)
class Bend:
    """How far the exponent falls towards large batch sizes.

    Attributes:
        probability: of a fall as clear as this one if the exponent is the same everywhere.
        small, large: exponent towards small and towards large batch sizes.
    """

    probability: float
    small: float
    large: float


def bend(
    batch_sizes: Array, log_steps: Array, weights: Array, seeds: Seeds, grid: float, power: StepsCurve
) -> Bend | None:
    """The curve that bends beside the power law; ``None`` below :data:`FEWEST` batch sizes, or with one seed.

    Args:
        batch_sizes, log_steps: means over seeds, shape ``[M]``.
        weights: numbers of seeds, shape ``[M]``.
        seeds: their variance, and its degrees of freedom.
        grid: as of :func:`analysis.estimate.fitting.misfit.lack_of_fit`.
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
