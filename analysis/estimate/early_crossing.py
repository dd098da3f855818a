r"""How early noisy evaluations cross a target: the first one beyond it is the luckiest of many.

Near the target the metric is modelled as a line in the logarithm of the steps, with slope m, plus white noise of
standard deviation s on every evaluation. Let evaluations be spaced by r, and let u be their distance from the point at
which the line crosses the target, both in units of :math:`s/m`. Each evaluation is beyond the target with probability
:math:`\Phi(u)`, and the first that is lies, in expectation,

.. math:: -u_0 - r \sum_k \prod_{j \le k} (1 - \Phi(u_j)) + r/2

before the crossing of the line, with :math:`u_0` far before it; the last term is due to the interpolation from the
previous evaluation.
"""

import math

import numpy as np
from scipy.special import ndtr

from analysis.quantities import Array

_AROUND = 2.0  # Evaluations from the steps to target over this to times this are used: 35 at 4 % apart
_FEWEST = 8  # Smallest number of evaluations from which their noise is estimated

# If the trend changes by this many standard deviations from one evaluation to the next, the target is not crossed
# early.
_APART = 1.5

_CLOSE = 1e-3  # The sum over evaluations that are nearer, in standard deviations, would be long
_FAR = 8.0  # Distance from the crossing, in standard deviations, beyond which probabilities are 0 or 1


def early_crossing(steps: Array, values: Array, crossing: float) -> float:
    """Return by how many log steps noisy evaluations are expected to cross the target before their trend does.

    Args:
        steps: steps of the evaluations.
        values: values of the metric.
        crossing: steps at which the evaluations crossed the target.

    Returns:
        The expected lead; at most ``ln 2``, which is also returned if there is no trend.
    """
    near = (steps >= crossing / _AROUND) & (steps <= crossing * _AROUND) & np.isfinite(values)
    x, y = np.log(steps[near]), values[near]
    if len(x) < _FEWEST:
        return 0.0
    # the distance from the chord of its neighbours contains the noise only, apart from the small curvature of the trend
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
