"""Numbers as a person reads them: significant digits, and never more than they mean."""

from __future__ import annotations

import math

DASH = "–"
_SMALL, _LARGE = 1e-4, 1e7
"""Magnitudes below and from which a number is written in powers of ten."""


def number(value: float | None, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits: whole where that loses nothing and with a thousands separator, in
    powers of ten where it is tiny or huge, a dash where it is undefined. A whole number of type ``int`` is a count and
    keeps all of its digits."""
    if value is None or not math.isfinite(value):
        return DASH
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0:
        return "0"
    if not _SMALL <= abs(value) < _LARGE:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(power)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ends(interval: tuple[float | None, float | None]) -> str:
    """``[low, high]``; an open end is a zero or an infinity, and an unknown interval is empty."""
    low, high = interval
    if low is None and high is None:
        return ""
    return f"[{'0' if low is None else number(low)}, {'∞' if high is None else number(high)}]"


def with_interval(value: float | None, interval: tuple[float | None, float | None], *, between: str = " ") -> str:
    """``value [low, high]``, see :func:`ends`."""
    return between.join(filter(None, (number(value), ends(interval))))


def percent(confidence: float) -> str:
    """A confidence in percent, without the sign."""
    return f"{100 * confidence:g}"


def share_in_percent(value: float | None) -> str:
    """A small share, such as a residual of logarithms, in percent with its sign."""
    return DASH if value is None else f"{number(100 * value, 2)} %"
