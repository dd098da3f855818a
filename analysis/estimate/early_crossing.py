r"""How early noisy evaluations pass a target: the first that does so is the luckiest of many.

Near the target the metric is taken as a line in the logarithm of the steps, with slope m, and white noise of deviation
s on every evaluation. In units of :math:`s/m`, evaluations every r from the place where the line passes the target have
passed it with probability :math:`\Phi(u)` each, and the first that has is expected

.. math:: -u_0 - r \sum_k \prod_{j \le k} (1 - \Phi(u_j)) + r/2

before the line, with :math:`u_0` far before it; interpolation from the evaluation before takes half a distance back.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from analysis.arrays import Array

_AROUND = 2.0
"""Evaluations from this part of the steps to target to this multiple count."""

_FEWEST = 8
"""Evaluations below which nothing is known of their noise."""

_APART = 1.5
"""Deviations from one evaluation to the next, above which the target is not passed early."""

_CLOSE = 1e-3
_FAR = 8.0
"""Deviations before the line and after it, beyond which nothing happens."""


def early_crossing(steps: Array, values: Array, crossing: float) -> float:
    """By how many log steps evaluations at ``steps`` are expected to pass a target, as they did at ``crossing``, before
    their trend does; at most ``ln 2``, as where they have none."""
    near = (steps >= crossing / _AROUND) & (steps <= crossing * _AROUND) & np.isfinite(values)
    x, y = np.log(steps[near]), values[near]
    if len(x) < _FEWEST:
        return 0.0
    # off the chord of its neighbours an evaluation has noise alone, but for the little that the trend bends in between
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    off = y[1:-1] - (1 - share) * y[:-2] - share * y[2:]
    deviation = math.sqrt(float((off**2 / (1 + share**2 + (1 - share) ** 2)).mean()))
    slope = abs(float(np.polyfit(x - x.mean(), y, 1)[0]))
    distance = float(np.diff(x).mean()) * slope
    if distance >= _APART * deviation:
        return 0.0
    r = max(distance / deviation, _CLOSE)
    u = np.arange(-_FAR, _FAR + r, r)
    overshoot = _FAR - r * float(np.cumprod(1 - ndtr(u)).sum()) + r / 2
    return min(overshoot * deviation / slope, math.log(_AROUND)) if slope > 0 else math.log(_AROUND)
