"""Curves of the worlds of :mod:`benchmarks.worlds`: ``B / B_0`` to ``S / S_0``; and where their product is least.

Where a curve falls to 1 for infinite batches, it is 2 at 1. Around which batch size the product ``B S^2`` is least from
half to twice it is another number: 1 on the hyperbola, ``(2^a - 2^(1 - a))^(1 / a)`` with the exponent ``a``.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

from analysis.estimate.definitions.least_product import SPAN
from extensions.theory.noisy_quadratic.model import NoisyQuadratic
from extensions.theory.noisy_quadratic.search import tuned

Curve = Callable[[np.ndarray], np.ndarray]  # ``B / B_0`` -> ``S / S_0``

CRITICAL = 2.0**12.5
"""Middle of where sweeps draw ``B_0``, and of the batch sizes of most."""
MIN_STEPS = 1000.0  # Any: only ratios of steps are asked for
_FAR = 12.0  # Distance in ``ln B / CRITICAL`` up to which the least product is looked for


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Steps of one optimizer in one sweep, at the best learning rate and without noise.

    Attributes:
        curve: over ``B / critical``.
        critical: where the curve is at 1, not its critical batch size.
        min_steps: steps where the curve is 1.
        slowed: factor on the steps from twice :data:`CRITICAL` on.
    """

    curve: Curve
    critical: float
    min_steps: float = MIN_STEPS
    slowed: float = 1.0

    def steps(self, batch_sizes: np.ndarray) -> np.ndarray:
        """Steps to target, shape as ``batch_sizes``."""
        slower = np.where(batch_sizes < 2 * CRITICAL, 1.0, self.slowed)
        return self.min_steps * self.curve(batch_sizes / self.critical) * slower

    @functools.cached_property
    def least_product(self) -> float:
        """Batch size around which the mean of ``ln B S^2`` from half to twice it is least: 0 or infinite where that
        falls for ever towards that side."""

        def rise(at: np.ndarray) -> np.ndarray:
            half, double = (self.steps(CRITICAL * np.exp(at) * factor) for factor in (1 / SPAN, SPAN))
            return np.asarray(2 * math.log(SPAN) + 2 * np.log(double / half))

        # the mean rises by what the product is larger at the double than at the half
        at, gap = np.linspace(-_FAR, _FAR, 4801), 2 * _FAR / 4800
        for _ in range(3):
            found = float(at[np.cumsum(rise(at)).argmin()]) + gap / 2
            if abs(found) >= _FAR - gap:
                return 0.0 if found < 0 else math.inf
            at, gap = found + gap * np.linspace(-1, 1, 401), gap / 200
        return CRITICAL * math.exp(found)


def power(exponent: float) -> Curve:
    return lambda x: 1 + x**-exponent


def knee(sharpness: float, exponent: float = 1.0) -> Curve:
    """The asymptotes of the power law, joined more sharply than by it above 1 and more bluntly below; 2 is the square
    root of a sum of squares."""
    return lambda x: (1 + (2**sharpness - 1) * x ** (-sharpness * exponent)) ** (1 / sharpness)


def falling(share: float) -> Curve:
    """The hyperbola, with steps that fall by ``share`` per e-fold of the batch size, for ever."""
    return lambda x: (1 + 1 / x) * x**-share


def slowed(x: np.ndarray) -> np.ndarray:
    """The hyperbola, with runs that large batches make ever slower, by 10 % at 1."""
    return (1 + 1 / x) * (1 + 0.1 * x**0.3)


def two_exponents(x: np.ndarray) -> np.ndarray:
    """Half of the rise with the exponent 0.6, half with 1.2."""
    return 1 + 0.5 * x**-0.6 + 0.5 * x**-1.2


def falling_exponent(x: np.ndarray) -> np.ndarray:
    """From 1 at small batches to 0.6 at large ones."""
    return 1 + x**-0.8 * np.cosh(np.log(x)) ** 0.2


def two_slopes(x: np.ndarray) -> np.ndarray:
    """Perfect scaling up to 1, and steps that fall with the power 0.3 from there, for ever: the model of appendix F of
    2505.02222."""
    return np.maximum(1 / x, x**-0.3)


def perfect_then_none(x: np.ndarray) -> np.ndarray:
    """Perfect scaling up to 2, and the same steps from there: the asymptotes of the hyperbola."""
    return np.maximum(2 / x, 1.0)


def u_shaped(x: np.ndarray) -> np.ndarray:
    """Examples are fewest at a fifth, steps at six: the hyperbola and a parabola in ``ln B``."""
    return (1 + 1 / x) * np.exp(0.05 * np.log(x) ** 2)


def log_tail(x: np.ndarray) -> np.ndarray:
    """The hyperbola, with steps that fall for ever, ever more slowly."""
    return (1 + 1 / x) / (1 + 0.2 * np.log1p(x))


def log_overhead(x: np.ndarray) -> np.ndarray:
    """The hyperbola, with runs that large batches make slower by a logarithm."""
    return (1 + 1 / x) * (1 + 0.1 * np.log1p(x))


def two_powers(x: np.ndarray) -> np.ndarray:
    """Half of the rise with the exponent 1, half with 1/2."""
    return 1 + 0.5 / x + 0.5 * x**-0.5


def exponential(x: np.ndarray) -> np.ndarray:
    """What is left to save halves with every 1."""
    return -1 / np.expm1(-math.log(2) * x)


_TABULATED = 5 * math.log(2)
"""Distance in ``ln B / B_0`` up to which the noisy quadratic is solved; its slope stays the same beyond."""


def quadratic(x: np.ndarray) -> np.ndarray:
    """SGD at its best learning rate on a noisy quadratic of 10,000 coordinates, whose loss falls from 4.7 to 0.01."""
    curve, at = _quadratic(), np.log(x)
    near = np.clip(at, -_TABULATED, _TABULATED)
    return np.exp(curve(near) + curve(near, 1) * (at - near))


@functools.cache
def _quadratic() -> CubicSpline:
    """``ln S / S_min`` over ``ln B / B_0``, five octaves on either side."""
    model = NoisyQuadratic.binned(10_000)

    def steps(batch_size: float) -> float:
        found = tuned(model, "sgd", 0.01, batch_size)
        assert found is not None
        return found.steps

    least = steps(np.inf)
    middle = brentq(lambda log: math.log(steps(math.exp(log)) / (2 * least)), 0.0, 14.0, xtol=1e-10)
    logs = np.linspace(-_TABULATED, _TABULATED, 41)
    return CubicSpline(logs, [math.log(steps(math.exp(middle + log)) / least) for log in logs])
