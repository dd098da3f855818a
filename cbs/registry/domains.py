"""What values options may have: whole numbers, numbers within bounds; the one place where these are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, TypeGuard

from cbs.errors import ConfigError


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that JSON has; ``True`` and ``False`` are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether it is a whole number of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def whole(name: str, value: object, *, least: int = 1, what: str = "") -> int:
    """A whole number.

    Args:
        name: of the option, as an error calls it.
        value: of it.
        least: the smallest that is taken.
        what: that this is.

    Raises:
        ConfigError: if it is none, or below ``least``.
    """
    if not is_whole(value, least):
        raise ConfigError(f"{name} must be a whole number of at least {least}{what and ', '}{what}, got {value!r}")
    return value


def all_whole(workload: str, numbers: Mapping[str, int | None]) -> None:
    """Check options of a workload, each a positive whole number or ``None``.

    Raises:
        ConfigError: if one is something else.
    """
    for name, value in numbers.items():
        if value is not None:
            whole(f"{name} of workload {workload!r}", value)


def number(name: str, value: object, *, above: float = 0.0, below: float = math.inf) -> float:
    """A number between two bounds, neither of them included.

    Raises:
        ConfigError: if it is none, or not strictly between the bounds.
    """
    if not is_number(value) or not above < value < below:
        limit = "" if below == math.inf else f" and below {below:g}"
        raise ConfigError(f"{name} must be a number above {above:g}{limit}, got {value!r}")
    return float(value)


def finite(name: str, value: Any) -> float:
    """A finite number as a float, of any type of real numbers, so that 2 and 2.0 are stored alike.

    Raises:
        ConfigError: if it is none.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    return float(value)
