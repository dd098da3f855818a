r"""A confidence interval for the ratio of two means of correlated steps, for products, and for corrected noise scales.

Let :math:`s_t, n_t` be signal and noise of step t and :math:`R = E\,n / E\,s`. A value r is in the interval when the
mean of :math:`d_t = n_t - r s_t` is zero within its error. This is Fieller's (1954) quadratic inequality in r, which
needs no division by :math:`\bar s`; where :math:`\bar s` may be zero, an end of the interval is open.

The error of a mean of correlated steps comes from their slowest fluctuations. With orthonormal cosines
:math:`\varphi_j` over the steps, made orthogonal to the mean and to a linear drift,

.. math:: V = \frac{1}{\nu} \sum_{j=1}^{\nu} \Big(\sum_t \varphi_j(t)\,d_t\Big)^2 \frac{P_0}{P_j}

is a variance estimate with about :math:`\nu` degrees of freedom for Student's t, whatever the distribution and the
correlation of the steps, as long as the correlation time is a small part of the series (equally weighted cosines:
Müller 2004; Lazarus, Lewis, Stock and Watson 2018, "HAR inference"). Where that part is not small, the cosines have
less variance than the mean. The factor :math:`P_0/P_j` compensates for this: the ratio of the variances of mean and
cosine in an AR(1) series, whose correlation is fitted to the slow cosines (Whittle likelihood). No interval is given
for fewer than about eight independent steps.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

# Few: faster cosines have less variance than the mean of correlated steps. student_t() holds for eight alone.
_COSINES = 8

# The correlation is fitted to all of these; the eight slowest alone would hardly tell it.
_LEAST_WAVES, _MOST_WAVES = 12, 48

# Correlation times that are tried, in equal ratios from independent blocks to twice the series.
_CORRELATIONS = 48

# Effectively independent steps below which the interval has a note, and below which there is none.
_FEW, _TOO_FEW = 20.0, 8.0

_ROUNDING = 1e-12  # Relative; what is smaller is 0

Ends = tuple[float | None, float | None]
"""The two ends of an interval; ``None`` for an open end."""


@dataclass(frozen=True)
class Interval:
    """The two ends of a confidence interval.

    Attributes:
        low: lower end; ``None`` where 0 is not excluded.
        high: upper end; ``None`` where infinity is not excluded.
        note: why there is no interval, or why it is uncertain; mostly empty.
    """

    low: float | None
    high: float | None
    note: str = ""


def ratio_interval(
    signal: Array,
    noise: Array,
    *,
    steps: Array | None = None,
    starts: Array | None = None,
    exponent: int = 1,
    confidence: float = 0.95,
) -> Interval:
    """Return the confidence interval of ``(mean noise / mean signal) ** exponent``, restricted to positive values.

    Args:
        signal, noise: means over every block of consecutive steps, in their order, each of shape ``[blocks]``.
        steps: number of steps in every block; 1 by default.
        starts: true at the first block of each independent series; the first block always starts one.
        exponent: 1 or 2.
        confidence: confidence level, between 0 and 1.
    """
    blocks = len(signal)
    steps = np.ones(blocks) if steps is None else np.asarray(steps, dtype=float)
    starts = np.zeros(blocks, dtype=bool) if starts is None else np.asarray(starts, dtype=bool)
    design = _design(steps.tobytes(), starts.tobytes())
    if design.columns.shape[1] < 1 + _LEAST_WAVES:
        return Interval(None, None, "too few steps for an interval")
    coefficients = np.stack([signal, noise]) @ design.columns
    means, coefficients = coefficients[:, 0], coefficients[:, 1:]
    own = means[0] * coefficients[1] - means[1] * coefficients[0]
    # Noise in proportion to the signal at every step: the ratio has no error, and its correlation cannot be fitted.
    if np.abs(own).max() <= _ROUNDING * np.abs(means).prod():
        return _positive_part(*_fieller(means, np.zeros((2, 2)), 0.0), exponent)
    # the row of highest likelihood for squared normal coefficients, up to a common scale (Whittle)
    squares, variances = own**2, design.variances[:, 1:]
    cost = np.log(variances).sum(axis=1) + len(squares) * np.log((squares / variances).sum(axis=1))
    fit = int(cost.argmin())
    independent = design.independent[fit]
    if independent < _TOO_FEW:
        return Interval(None, None, f"no interval: only {independent:.0f} effectively independent steps")
    slowest = slice(1, 1 + _COSINES)
    shares = design.variances[fit, 0] / design.variances[fit, slowest]
    slow = coefficients[:, :_COSINES]
    covariance = (slow * shares) @ slow.T / _COSINES
    ends = _fieller(means, covariance, student_t(confidence))
    note = f"only {independent:.0f} effectively independent steps" if independent < _FEW else ""
    return _positive_part(*ends, exponent, note)


@dataclass(frozen=True)
class _Design:
    """Regression design of an interval, which depends only on the numbers of steps in the blocks.

    Attributes:
        columns: the mean and the slow cosines, orthonormal for steps of equal variance, shape ``[blocks, 1 + waves]``.
        variances: variance of the product of every column with an AR(1) series, shape ``[correlations, 1 + waves]``.
        independent: number of independent blocks that determine a mean as well, shape ``[correlations]``.
    """

    columns: Array
    variances: Array
    independent: Array


@lru_cache(maxsize=8)
def _design(steps: bytes, starts: bytes) -> _Design:
    share, start = np.frombuffer(steps), np.frombuffer(starts, dtype=bool)
    root = np.sqrt(share / share.mean())
    columns = np.column_stack([root / np.linalg.norm(root), _slow_waves(root, start)])
    correlations, variances = _ar1_variances(columns, start)
    return _Design(root[:, None] * columns, variances, len(root) * (1.0 - correlations) / (1.0 + correlations))


def _slow_waves(root: Array, starts: Array) -> Array:
    """Return orthonormal cosines, slowest first, that are orthogonal to the mean and to a linear drift in every series.

    None is faster than the blocks can resolve. Shape ``[blocks, waves]``.
    """
    share = root**2
    middle = np.cumsum(share) - share / 2
    series = np.cumsum(starts) - starts[0]
    drift = middle - (np.bincount(series, middle) / np.bincount(series))[series]
    unseen = np.linalg.qr(root[:, None] * np.column_stack([np.ones_like(root), drift]))[0]
    index = np.arange(2, min(2 + _MOST_WAVES, math.floor(share.sum() / share.max())))
    waves = root[:, None] * np.cos(np.pi * np.outer(middle / share.sum(), index))
    waves /= np.linalg.norm(waves, axis=0)
    return np.linalg.qr(waves - unseen @ (unseen.T @ waves))[0]


def _ar1_variances(columns: Array, starts: Array) -> tuple[Array, Array]:
    """Return tabulated AR(1) correlations, and the variance of each column's product with such a series of variance 1.

    Shapes ``[correlations]`` and ``[correlations, columns]``.
    """
    times = np.geomspace(1.0, 2.0 * len(columns), _CORRELATIONS)
    correlations = (times - 1.0) / (times + 1.0)
    past = np.zeros((_CORRELATIONS, columns.shape[1]))
    variances = np.zeros_like(past)
    for row, start in zip(columns, starts, strict=True):
        past = row + (0.0 if start else correlations[:, None] * past)
        variances += row * (2.0 * past - row)
    return correlations, variances


def _fieller(means: Array, covariance: Array, quantile: float) -> tuple[float, float]:
    """Return the smallest and the largest r >= 0, infinity included, with ``(n - r s)^2 <= quantile^2 Var(n - r s)``.

    Both are NaN where there is none.
    """
    signal, noise = means
    a, b, c = np.array([signal**2, signal * noise, noise**2]) - quantile**2 * covariance[[0, 0, 1], [0, 1, 1]]
    discriminant = b * b - a * c
    zero, infinity = c <= 0.0, a <= 0.0
    if zero and infinity:
        return 0.0, math.inf
    root = math.sqrt(max(0.0, discriminant))
    # The roots of a r^2 - 2 b r + c, computed without cancellation.
    far = b + math.copysign(root, b)
    roots = [value for value in (far / a if a else math.inf, c / far if far else 0.0) if 0.0 < value < math.inf]
    if zero:
        return 0.0, max(roots, default=math.nan)
    if infinity:
        return min(roots, default=math.nan), math.inf
    return (min(roots), max(roots)) if roots else (math.nan, math.nan)


def _positive_part(low: float, high: float, exponent: int, note: str = "") -> Interval:
    if math.isnan(low) or math.isnan(high):
        return Interval(None, None, note or "no interval: no positive value is compatible with the steps")
    if low == 0.0 and high == math.inf:
        return Interval(None, None, note or "the steps exclude neither 0 nor infinity")
    return Interval(
        float(low) ** exponent if low > 0 else None, float(high) ** exponent if high < math.inf else None, note
    )


def student_t(level: float) -> float:
    """Return the two-sided quantile of Student's t with 8 degrees of freedom (Abramowitz and Stegun 1964, 26.7.4)."""
    roots = np.roots([-5, 0, 21, 0, -35, 0, 35, -16 * level])  # of the probability in s = t / sqrt(8 + t^2)
    s = float(next(root.real for root in roots if abs(root.imag) < _ROUNDING and 0 < root.real < 1))
    return math.sqrt(_COSINES / (1 - s * s)) * s


def product_ends(*factors: tuple[float, Ends]) -> Ends:
    """Return the interval of a product of positive values with intervals; an end is open where that of a factor is.

    On the log axis, the distance of an end from the product of independent estimates is the square root of the sum of
    the factors' squared distances (Zou and Donner 2008, "method of variance estimates recovery").
    """
    value = math.prod(value for value, _ in factors)

    def end(which: int) -> float | None:
        distances = []
        for own, ends in factors:
            limit = ends[which]
            if not limit:
                return None
            distances.append(math.log(limit / own))
        return value * math.exp((1.0 if which else -1.0) * math.hypot(*distances))

    return end(0), end(1)


def correction(simple: float, ends: Ends, batch_size: float) -> tuple[float, Ends]:
    r"""Return the factor :math:`1 + B_{simple}/B` with its interval, for noise scales of exponent 2 measured at batch
    size B.

    The signal of these noise scales is the norm of a noisy gradient g instead of the true gradient G. In the Euclidean
    norm the bias is known, :math:`E|g|^2/|G|^2 = 1 + B_{simple}/B`, and if g and G have the same ratio of norms,
    :math:`\|g\|/|g| = \|G\|/|G|`, it is the same in the other norm. Exact for ``l1`` if gradient entries are Gaussian
    with the same signal-to-noise ratio, and for any noise as B grows. Where the true gradient is sparser than the
    noise, or of lower rank, as always for ``nuclear``, the correction is too small. On a small GPT at 1/3 to 100 times
    :math:`B_{simple}`, ``l1`` gave 0.23 to 1.06 of the true value before the correction and 0.78 to 1.09 after it,
    ``nuclear`` 0.10 to 0.88 before and 0.29 to 0.88 after. On a noisy quadratic, where few of 4096 coordinates hold the
    signal, ``l1`` at five times :math:`B_{simple}` gave 0.18 before and no more than 0.21 after.

    >>> correction(simple=64.0, ends=(32.0, None), batch_size=64)
    (2.0, (1.5, None))
    """
    low, high = ends
    return 1.0 + simple / batch_size, (
        1.0 + (low or 0.0) / batch_size,
        None if high is None else 1.0 + high / batch_size,
    )


def corrected(
    noise_scale: float, ends: Ends, simple: float, simple_ends: Ends, batch_size: float
) -> tuple[float, Ends]:
    r"""Return a noise scale of exponent 2 times :math:`1 + B_{simple}/B`, with its interval.

    The two factors are treated as independent.

    Args:
        noise_scale, ends: measured noise scale and its interval, in a geometry of exponent 2.
        simple, simple_ends: noise scale and interval in geometry ``l2``, from the same steps.
        batch_size: batch size of these steps, in examples.
    """
    factor = correction(simple, simple_ends, batch_size)
    return noise_scale * factor[0], product_ends((noise_scale, ends), factor)
