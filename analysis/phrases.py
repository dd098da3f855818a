"""Numbers and names as a person says them."""

from __future__ import annotations

import math
from collections.abc import Iterable

_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))


def time_unit(seconds: Iterable[float]) -> tuple[str, float]:
    """The largest unit that is at most half the middle one of ``seconds``, and its length in seconds."""
    usable = sorted(value for value in seconds if math.isfinite(value) and value > 0)
    middle = usable[len(usable) // 2] if usable else 1.0
    return next((unit for unit in reversed(_UNITS) if middle >= 2 * unit[1]), _UNITS[0])


def plural(count: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def share(probability: float) -> str:
    """A probability from resamples; the ends say that almost none disagrees, not that none could."""
    if probability > 0.999:
        return "> 0.999"
    return "< 0.001" if probability < 0.001 else f"{probability:.3f}"


def literal(text: str) -> str:
    """``text`` for :mod:`rich` without markup."""
    return text.replace("[", r"\[")
