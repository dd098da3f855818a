"""Values that users give, parsed and checked: integers, numbers within bounds, lists, durations, amounts of data.

The only place where such values are rejected.
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, TypeGuard

from cbs.errors import ConfigError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = r"((?:\d[\d_]*\.?\d*|\.\d+)(?:e\d\d?)?)([KMBT]?)"
_AMOUNT = re.compile(_NUMBER, re.ASCII | re.IGNORECASE)
_ENTRY = re.compile(_NUMBER + r":(\d+)([KM]?)", re.ASCII | re.IGNORECASE)


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


def parse_batch_sizes(text: str, flag: str = "--batch-sizes") -> tuple[int, ...]:
    """Parse ``"4,8,16"`` as a list, ``"4..512"`` as 4 and its doublings up to 512.

    >>> parse_batch_sizes("4..32")
    (4, 8, 16, 32)

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
    """Parse seeds: a single number is the number of seeds (0, 1, ...), a list the seeds themselves.

    >>> parse_seeds("3"), parse_seeds("4,7")
    ((0, 1, 2), (4, 7))
    """
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
    """Return the seconds in ``90``, ``90s``, ``30m``, ``2h`` or ``1d``.

    >>> parse_duration("1.5h")
    5400.0
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _SECONDS else (text, "s")
    try:
        seconds = float(number) * _SECONDS[unit]
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds < math.inf:
        raise ConfigError(f"{flag} takes a duration such as 2h, 30m or 90 (seconds), got {text!r}")
    return seconds


def parse_table(text: str) -> list[tuple[int, int]]:
    """Parse a table into the start and the batch size of each stage; entries are separated by spaces or commas.

    >>> parse_table("0:16 10K:32")
    [(0, 16), (10000, 32)]

    Raises:
        ConfigError: names the entry that is not ``start:size`` or does not begin after the one before it; also if the
            first does not begin at 0.
    """
    table: list[tuple[int, int]] = []
    for entry in text.replace(",", " ").split():
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(f"{entry!r} in the table of stages {text!r} is not start:size, as in 0:768 250B:1536")
        start, unit, size, thousands = match.groups()
        begin = _amount(start, unit, entry)
        # The length first: int() raises an error of its own for thousands of digits.
        batch_size = int(size) * _SUFFIXES[thousands.upper()] if len(size) < 13 else 0
        if batch_size < 1:
            raise ConfigError(f"{entry!r} in the table of stages {text!r}: the batch size must be between 1 and 1e12")
        if table and begin <= table[-1][0]:
            raise ConfigError(f"{entry!r} in the table of stages {text!r} does not begin after the stage before it")
        table.append((begin, batch_size))
    if not table or table[0][0] != 0:
        raise ConfigError(f"the table of stages {text!r} must begin at 0, as in 0:768 250B:1536")
    return table


def parse_amount(text: str) -> int:
    """Parse a number of examples or tokens: ``608B``, ``1.5M``, ``4096``, ``250e9``, ``250_000_000``.

    >>> parse_amount("1.5M")
    1500000

    Raises:
        ConfigError: if it is not a number above 0.
    """
    match = _AMOUNT.fullmatch(text.strip())
    amount = _amount(match[1], match[2], text) if match else 0
    if amount < 1:
        raise ConfigError(f"{text!r} is not a number of examples or tokens above 0, such as 4096, 1.5M or 608B")
    return amount


def _amount(digits: str, unit: str, text: str) -> int:
    amount = Decimal(digits) * _SUFFIXES[unit.upper()]
    if len(digits) > 18 or amount > 10**18:  # numbers of examples are stored with 64 bits
        raise ConfigError(f"{text!r} is too large; the limit is 1e18")
    if amount != int(amount):
        raise ConfigError(f"{text!r} is not a whole number of examples or tokens")
    return int(amount)
