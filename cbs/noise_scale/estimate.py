"""A noise scale with its interval."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimate of ``(mean noise / mean signal) ** exponent`` over some steps, with its interval. Never clamped.

    There may be an interval although there is no value: a mean signal that is negative within its error shows that the
    noise scale is large, and the interval says at least how large.

    Attributes:
        value: the noise scale; ``None`` where it is undefined because a mean is not positive.
        low: lower end of the interval; ``None`` where the data do not exclude 0.
        high: upper end of the interval; ``None`` where the data do not exclude infinity. Both ends are ``None`` too
            where there is no interval, and then ``note`` says why.
        confidence: confidence level of the interval.
        signal: mean signal over the steps; ``None`` without steps.
        noise: mean noise over the steps; ``None`` without steps.
        steps: number of steps behind the means.
        examples: number of examples behind the means.
        note: a caveat, or why value or interval is missing; mostly empty.
        unit: unit of the value and of the interval.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float
    signal: float | None = None
    noise: float | None = None
    steps: int = 0
    examples: int = 0
    note: str = ""
    unit: str = "examples"

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The interval ``(low, high)``."""
        return self.low, self.high

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ``None`` where undefined, never NaN."""
        return asdict(self)

    def __str__(self) -> str:
        text = "undefined" if self.value is None else three_digits(self.value)
        if self.low is not None and self.high is None:
            guess = "" if self.value is None else f" (best guess {text})"
            text = f"above {three_digits(self.low)} {self.unit}{guess}, with no upper end at this batch size"
        elif self.high is not None:
            low = "0" if self.low is None else three_digits(self.low)
            text += f" [{low}, {three_digits(self.high)}] {self.unit}"
        elif self.value is not None:
            text += f" {self.unit}"
        return f"{text}: {self.note}" if self.note else text


@dataclass(frozen=True, kw_only=True)
class Nested:
    """Noise scale where examples belong together in groups, and its two parts.

    Attributes:
        members: n, the number of examples in a group.
        groups: noise of a group's mean gradient over the squared gradient, in groups: about ``between + within/n``.
        between: noise that more examples in a group do not reduce, over the squared gradient, in groups.
        within: noise of an example around its group's mean, over the squared gradient, in examples.
    """

    members: int
    groups: Estimate
    between: Estimate
    within: Estimate

    def __str__(self) -> str:
        return f"{self.groups}; between groups {self.between}; within a group {self.within}"


def three_digits(value: float) -> str:
    """Format ``value`` with three significant digits and no exponent; as a whole number from 100 on."""
    decimals = 2 - math.floor(math.log10(abs(value))) if value else 2
    return f"{value:,.{max(0, decimals)}f}"
