"""A number with its interval, and dataclasses as plain JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analysis.plain import shown

Interval = tuple[float | None, float | None]
OPEN: Interval = (None, None)


class Plain:
    """A dataclass whose fields are the keys of its JSON; a field without ``repr`` is left out."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``None`` where undefined, never NaN."""
        return shown(self)


@dataclass(frozen=True)
class Quantity(Plain):
    """A number that came out of a fit or of measurements.

    Attributes:
        value: ``None`` where the data do not show it.
        interval: of ``value``; an open end is ``None``.
    """

    value: float | None = None
    interval: Interval = OPEN

    def times(self, factor: float) -> Quantity:
        """In another unit."""
        value, low, high = (None if each is None else each * factor for each in (self.value, *self.interval))
        return Quantity(value, (low, high))

    def named(self, name: str) -> dict[str, Any]:
        """Two keys in place of a nested object."""
        return {name: self.value, f"{name}_interval": list(self.interval)}


UNKNOWN = Quantity()
