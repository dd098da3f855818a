"""Checks of option values: integers, numbers within bounds; the only place where such values are rejected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, TypeGuard

from cbs.errors import ConfigError


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number in JSON; ``True`` and ``False`` are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object, least: int = 1) -> TypeGuard[int]:
    """Return whether a value is an integer of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def whole(name: str, value: object, *, least: int = 1, what: str = "") -> int:
    """Check that a value is an integer.

    Args:
        name: name of the option, for the error message.
        value: value of the option.
        least: smallest valid value.
        what: meaning of ``least``, for the error message.

    Raises:
        ConfigError: if it is not an integer, or below ``least``.
    """
    if not is_whole(value, least):
        raise ConfigError(f"{name} must be a whole number of at least {least}{what and ', '}{what}, got {value!r}")
    return value


def all_whole(workload: str, numbers: Mapping[str, int | None]) -> None:
    """Check options of a workload, each of which has to be a positive integer or ``None``.

    Raises:
        ConfigError: if one is something else.
    """
    for name, value in numbers.items():
        if value is not None:
            whole(f"{name} of workload {workload!r}", value)


def number(name: str, value: object, *, above: float = 0.0, below: float = math.inf) -> float:
    """Check that a value is a number between two bounds, both excluded.

    Raises:
        ConfigError: if it is not a number, or not strictly between the bounds.
    """
    if not is_number(value) or not above < value < below:
        limit = "" if below == math.inf else f" and below {below:g}"
        raise ConfigError(f"{name} must be a number above {above:g}{limit}, got {value!r}")
    return float(value)


def finite(name: str, value: Any) -> float:
    """Return a finite number of any real type as a float, so that 2 and 2.0 are stored alike.

    Raises:
        ConfigError: if it is not a finite number.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    return float(value)
