"""Numbers and names as a person says them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any

_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))

DASH = "–"
B_CRIT = (
    "the critical batch size B_crit is the one around which steps x examples, B S(B)^2, is least on average: from half "
    "to twice B_crit, the steps halve and the examples double"
)
"""What the headline is, in the same words everywhere."""

_SMALL, _LARGE = 1e-4, 1e7  # Magnitudes below and from which a number is written in powers of ten


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


def ends(interval: tuple[float | None, float | None], *, signed: bool = False) -> str:
    """``[low, high]``; an open lower end is 0, of what may be negative minus infinity; an open upper one infinity. An
    unknown interval is empty."""
    low, high = interval
    if low is None and high is None:
        return ""
    least = "-∞" if signed else "0"
    return f"[{least if low is None else number(low)}, {'∞' if high is None else number(high)}]"


def beyond(interval: tuple[float | None, float | None]) -> str:
    """``above 512`` or ``below 4``: what is known of a number without a value, of whose interval one end is open; empty
    otherwise."""
    low, high = interval
    if (low is None) == (high is None):
        return ""
    return f"above {number(low)}" if high is None else f"below {number(high)}"


def with_interval(value: float | None, interval: tuple[float | None, float | None]) -> str:
    """``value [low, high]``, see :func:`ends`; without a value :func:`beyond`."""
    if value is None and (bound := beyond(interval)):
        return bound
    return " ".join(filter(None, (number(value), ends(interval))))


def percent(confidence: float) -> str:
    """A confidence in percent, without the sign."""
    return f"{100 * confidence:g}"


def share_in_percent(value: float | None) -> str:
    """A small share, such as a residual of logarithms, in percent with its sign; what is left of rounding is 0."""
    return DASH if value is None else f"{number(round(100 * value, 6), 2)} %"


def time_unit(seconds: Iterable[float]) -> tuple[str, float]:
    """The largest unit that is at most half the middle one of ``seconds``, and its length in seconds."""
    usable = sorted(value for value in seconds if math.isfinite(value) and value > 0)
    middle = usable[len(usable) // 2] if usable else 1.0
    return next((unit for unit in reversed(_UNITS) if middle >= 2 * unit[1]), _UNITS[0])


def plural(count: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def share(probability: float | None) -> str:
    """A probability from resamples; the ends say that almost none disagrees, not that none could."""
    if probability is None:
        return DASH
    if probability > 0.999:
        return "> 0.999"
    return "< 0.001" if probability < 0.001 else f"{probability:.3f}"


def duration(seconds: float) -> str:
    """Format a length of time in one or two convenient units."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def shown(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that its ``repr`` shows, by name, as :func:`plain`."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}


def plain(value: Any) -> Any:
    """``value`` as JSON has it: what its ``to_json`` says, :func:`shown` of a dataclass without, lists and mappings
    of such."""
    import numpy as np  # late, as the help of every command imports this file

    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return shown(value)
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list | np.ndarray):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, StrEnum) else value


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of everything in nested dictionaries that holds nothing further."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from flat(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
