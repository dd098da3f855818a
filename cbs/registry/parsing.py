"""Parsers of numbers, lists of numbers and durations that a user types on a command line."""

from __future__ import annotations

import math
from typing import Any

from cbs.errors import ConfigError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_batch_sizes(text: str, flag: str = "--batch-sizes") -> tuple[int, ...]:
    """Parse ``"4,8,16"`` as a list, ``"4..512"`` as 4 and its doublings up to 512.

    Raises:
        ConfigError: if the text is neither, or the doublings do not meet the end of the range.
    """
    first, dots, last = text.partition("..")
    if not dots:
        return parse_numbers(text, flag, int, " or a range such as 4..512")
    ends = parse_numbers(f"{first},{last}", flag, int) if first.strip() and last.strip() else ()
    if len(ends) != 2:
        raise ConfigError(f"{flag} {text}: a range has two ends, as in 4..512")
    low, high = ends
    if not 1 <= low <= high:
        raise ConfigError(f"{flag} {text}: the range must start at 1 or more and end at or above its start")
    sizes = [low]
    while sizes[-1] * 2 <= high:
        sizes.append(sizes[-1] * 2)
    if sizes[-1] != high:
        near = f"{low}..{sizes[-1]} or {low}..{2 * sizes[-1]}"
        raise ConfigError(f"{flag} {text}: a range doubles and does not meet {high}; use {near}, or list the sizes")
    return tuple(sizes)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds: a single number is the number of seeds (0, 1, ...), a list the seeds themselves."""
    numbers = parse_numbers(text, "--seeds", int)
    if "," in text:
        return numbers
    if numbers[0] < 1:
        raise ConfigError(f"--seeds {text}: at least one seed is needed")
    return tuple(range(numbers[0]))


def parse_numbers(text: str, flag: str, kind: type[int] | type[float], other: str = "") -> tuple[Any, ...]:
    """Parse numbers separated by commas; ``other`` describes what else the flag accepts, for the error message."""
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip() or not text.strip())
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{flag} takes {what} separated by commas{other}, got {text!r}") from None


def parse_duration(text: str, flag: str = "--max-time") -> float:
    """Return the seconds in ``90``, ``90s``, ``30m``, ``2h`` or ``1d``."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _SECONDS else (text, "s")
    try:
        seconds = float(number) * _SECONDS[unit]
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        raise ConfigError(f"{flag} takes a duration such as 2h, 30m or 90 (seconds), got {text!r}")
    return seconds
