"""How narrow an interval of ln B_crit can be: half widths from the Fisher information, everything but the curve known.

Eight batch sizes a factor 2 apart around B_crit, three seeds with 6 % noise, as :mod:`benchmarks.world_data` has them,
but the noise is known exactly, and so are the distributions that exponents are drawn from. No interval that holds the
truth as often as it says is narrower on average. Run as ``python -m benchmarks.attainable_widths``; a second.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import norm

from benchmarks.world_data import EIGHT, rising_examples

SIZES = math.log(2.0) * np.array(EIGHT)
VARIANCE = 0.06**2 / 3
CRITICAL = math.log(2.0) * np.linspace(-0.5, 0.5, 9)
QUANTILE = float(norm.ppf(0.975))


def log_steps(parameters: np.ndarray) -> np.ndarray:
    """``ln S`` of ``ln S_min, ln B_crit, ln a`` and a bend: below B_crit the slope grows by 2/3 of it per factor e."""
    level, critical, log_exponent, bend = parameters
    distance = critical - SIZES
    return level + np.logaddexp(0.0, np.exp(log_exponent) * distance + bend * np.maximum(distance, 0.0) ** 2 / 3)


def information(parameters: np.ndarray) -> np.ndarray:
    """Of the data on the parameters, by finite differences; shape ``[4, 4]``."""
    moved = 1e-5 * np.eye(4)
    slopes = np.array([log_steps(parameters + by) - log_steps(parameters - by) for by in moved]) / 2e-5
    return slopes @ slopes.T / VARIANCE


def half_width(curves: int, common: float, own: float, bend: float = 1e-6) -> float:
    """Of one of ``curves`` hyperbolas whose log exponents are a ``common`` normal deviation and one of their ``own``,
    mean over where B_crit lies."""
    found = []
    for critical in CRITICAL:
        known = np.zeros((1 + 4 * curves,) * 2)
        known[0, 0] = common**-2 + curves * own**-2
        for first in range(1, len(known), 4):
            part = slice(first, first + 4)
            known[part, part] = information(np.array([0.0, critical, 0.0, 0.0])) + np.diag([0, 0, own**-2, bend**-2])
            known[0, first + 2] = known[first + 2, 0] = -(own**-2)
        found.append(QUANTILE * math.sqrt(np.linalg.inv(known)[2, 2]))
    return float(np.mean(found))


def covered(bend: float) -> tuple[float, float]:
    """Share of intervals that hold the truth where examples rise at small batches, and their half width; ``bend`` is
    the standard deviation of the normal prior of the bend, the exponent is free."""
    shares, widths = [], []
    for critical in CRITICAL:
        steps = np.log(rising_examples(np.exp(SIZES - critical)))

        def residuals(at: np.ndarray, steps: np.ndarray = steps) -> np.ndarray:
            return np.append((log_steps(at) - steps) / math.sqrt(VARIANCE), at[3] / bend)

        found = least_squares(residuals, [0.0, critical, 0.1, 0.0]).x
        deviation = math.sqrt(np.linalg.inv(information(found) + np.diag([0, 0, 0, bend**-2]))[1, 1])
        shift = (found[1] - critical) / deviation
        shares.append(norm.cdf(QUANTILE - shift) - norm.cdf(-QUANTILE - shift))
        widths.append(QUANTILE * deviation)
    return float(np.mean(shares)), float(np.mean(widths))


def main() -> None:
    print("half width of ln B_crit of a hyperbola, noise known exactly")
    print(f"  exponent known to be 1: {half_width(1, 1e-6, 1e-6):.3f}; one curve: {half_width(1, 0.15, 0.05):.3f}")
    for own in (1e-6, 0.02, 0.03, 0.05, 0.07):
        widths = ", ".join(f"{half_width(3, common, own):.3f}" for common in (0.05, 0.1, 0.15))
        print(f"  three curves, own deviation {own:.2g}, common 0.05, 0.1, 0.15: {widths}")
    print("a bend at small batches with a normal prior: hyperbola, then where examples rise")
    for bend in (1e-6, 0.05, 0.1, 0.15, 0.2):
        share, width = covered(bend)
        print(f"  prior {bend:.2g}: {half_width(1, 0.15, 0.05, bend):.3f}; {100 * share:.0f} % covered, {width:.3f}")


if __name__ == "__main__":
    main()
