"""The type of every array of numbers here, the interval of many of them, and a number with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from cbs.noise_scale.interval import product_ends

Array = np.ndarray[Any, np.dtype[np.float64]]
Interval = tuple[float | None, float | None]


def percentiles(values: Array, confidence: float) -> Array:
    """Ends of the interval that holds the middle ``confidence`` of the rows of ``values`` ``[R, ...]``, shape
    ``[2, ...]``; NaN without rows."""
    if not len(values):
        return np.full((2, *values.shape[1:]), np.nan)
    return np.asarray(np.quantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2], axis=0))


def interval(values: Array, confidence: float) -> Interval:
    """Return the percentile interval of positive drawn values; an end at 0 or infinity, or any NaN, is ``None``."""
    if not len(values) or np.isnan(values).any():
        return None, None
    low, high = np.quantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2], method="nearest")
    return (float(low) if 0 < low < np.inf else None, float(high) if 0 < high < np.inf else None)


def widening(freedom: float, confidence: float) -> float:
    """Return the ratio of the quantiles of Student's t and the normal distribution, for an estimated deviation."""
    tail = 0.5 + confidence / 2
    return float(stdtrit(freedom, tail) / ndtri(tail))


def pooled(rows: Iterable[Array]) -> tuple[float, int]:
    """Return the sum of squares of every row around its mean, and its degrees of freedom: the noise that the rows have
    in common is the ratio of the two."""
    squares, freedom = 0.0, 0
    for row in rows:
        squares, freedom = squares + float(((row - row.mean()) ** 2).sum()), freedom + len(row) - 1
    return squares, freedom


OPEN: Interval = (None, None)


@dataclass(frozen=True)
class Quantity:
    """A number that came out of a fit or of measurements.

    Attributes:
        value: ``None`` where the data do not show it.
        interval: of ``value``; an open end is ``None``.
    """

    value: float | None = None
    interval: Interval = OPEN

    @classmethod
    def of_draws(cls, rows: Array, confidence: float) -> Quantity:
        """The first of ``rows`` with the interval of the others, without one where some of these have no value."""
        if not math.isfinite(rows[0]):
            return UNKNOWN
        known = len(rows) > 1 and bool(np.isfinite(rows[1:]).all())
        low, high = percentiles(rows[1:], confidence).tolist() if known else OPEN
        return Quantity(float(rows[0]), (low, high))

    @classmethod
    def open_ended(cls, rows: Array, confidence: float) -> Quantity:
        """Likewise, where some of the others may be infinite, or NaN for anything: an end that falls on one is open."""
        value = float(rows[0]) if math.isfinite(rows[0]) else None
        if len(rows) == 1:
            return Quantity(value)
        ends = []
        for rank, unknown in ((0.5 - confidence / 2, -math.inf), (0.5 + confidence / 2, math.inf)):
            end = float(np.quantile(np.where(np.isnan(rows[1:]), unknown, rows[1:]), rank, method="nearest"))
            ends.append(end if math.isfinite(end) else None)
        return Quantity(value, (ends[0], ends[1]))

    def mapped(self, of: Callable[[float], float], *, falling: bool = False) -> Quantity:
        """An increasing or ``falling`` function of the quantity."""
        value, low, high = (None if each is None else of(each) for each in (self.value, *self.interval))
        return Quantity(value, (high, low) if falling else (low, high))

    def times(self, factor: float) -> Quantity:
        """The quantity in another unit."""
        return self.mapped(lambda value: value * factor)

    def over(self, other: Quantity) -> Quantity:
        """The ratio of two numbers that are independent; an end is open where one of theirs is.

        See :mod:`cbs.noise_scale.interval`.
        """
        if self.value is None or other.value is None:
            return UNKNOWN
        low, high = other.interval
        inverse = 1.0 / other.value, (1.0 / high if high else None, 1.0 / low if low else None)
        return Quantity(self.value / other.value, product_ends((self.value, self.interval), inverse))

    def opened(self, *beyond: float) -> Quantity:
        """The quantity with an open lower end for a positive entry of ``beyond``, an open upper end for a negative
        one."""
        low, high = self.interval
        return Quantity(self.value, (None if max(beyond) > 0 else low, None if min(beyond) < 0 else high))

    def named(self, name: str) -> dict[str, Any]:
        """Two keys in place of a nested object."""
        return {name: self.value, f"{name}_interval": list(self.interval)}


UNKNOWN = Quantity()
