"""Relations between our numbers and the published ones, and the verdict that follows from our intervals."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from analysis.quantities import Quantity


class Reproduced(StrEnum):
    """Whether a published statement was found again."""

    YES = "reproduced"
    NO = "differs"
    UNKNOWN = "cannot be told at this scale"


class PublishedRelation(ABC):
    """Base class of what a published statement says about numbers that can be measured."""

    @abstractmethod
    def verdict(self, found: Sequence[Quantity]) -> Reproduced:
        """Return the verdict on one or several numbers that all have a value; an open end of an interval counts as
        infinite."""

    def unfit(self, found: Sequence[Quantity]) -> str:
        """Return why the numbers cannot be compared with the statement; empty if they can."""
        return ""

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Near(PublishedRelation):
    """The numbers lie within a tolerance of the published ones: reproduced if all intervals lie inside it, different if
    one lies outside.

    Attributes:
        values: published values, one for each number.
        tolerance: largest difference, in the unit of the numbers; 0 if they must be equal.
    """

    values: tuple[float, ...]
    tolerance: float

    def unfit(self, found: Sequence[Quantity]) -> str:
        short = len(found) != len(self.values)
        return f"{len(self.values)} numbers are published, and the analysis has {len(found)}" if short else ""

    def verdict(self, found: Sequence[Quantity]) -> Reproduced:
        if self.unfit(found):
            return Reproduced.UNKNOWN
        ends = [_ends(each) for each in found]
        bands = [(value - self.tolerance, value + self.tolerance) for value in self.values]
        pairs = list(zip(ends, bands, strict=True))
        if any(high < least or low > most for (low, high), (least, most) in pairs):
            return Reproduced.NO
        inside = all(least <= low and high <= most for (low, high), (least, most) in pairs)
        return Reproduced.YES if inside else Reproduced.UNKNOWN

    def __str__(self) -> str:
        listed = ", ".join(f"{value:g}" for value in self.values)
        return f"{listed}, exactly" if self.tolerance == 0 else f"{listed} within {self.tolerance:g}"


@dataclass(frozen=True)
class Beyond(PublishedRelation):
    """Every number lies on one side of a bound: reproduced if all intervals do, different if one is on the other side.

    Attributes:
        bound: bound in the unit of the numbers: 0 for the sign of a difference, 1 for the direction of a ratio.
        above: whether the numbers lie above the bound; otherwise below.
    """

    bound: float
    above: bool = True

    def verdict(self, found: Sequence[Quantity]) -> Reproduced:
        ends = [_ends(each) for each in found]
        if not self.above:
            ends = [(-high, -low) for low, high in ends]
        bound = self.bound if self.above else -self.bound
        if any(high < bound for _, high in ends):
            return Reproduced.NO
        return Reproduced.YES if ends and all(low > bound for low, _ in ends) else Reproduced.UNKNOWN

    def __str__(self) -> str:
        return f"{'above' if self.above else 'below'} {self.bound:g}"


@dataclass(frozen=True)
class Likely(PublishedRelation):
    """The numbers are probabilities of the statement: reproduced if all are at least ``level``, different if one is at
    most 1 - ``level``."""

    level: float = 0.95

    def verdict(self, found: Sequence[Quantity]) -> Reproduced:
        values = [each.value for each in found if each.value is not None]
        if any(value <= 1.0 - self.level for value in values):
            return Reproduced.NO
        return Reproduced.YES if values and min(values) >= self.level else Reproduced.UNKNOWN

    def __str__(self) -> str:
        return f"with probability {self.level:g} or more"


@dataclass(frozen=True)
class Monotone(PublishedRelation):
    """The numbers rise, or fall, in order, judged where intervals do not overlap: different if one is behind the one
    before it, or the last behind the first; reproduced if the last is beyond the first and all have a closed end."""

    rising: bool = True

    def verdict(self, found: Sequence[Quantity]) -> Reproduced:
        ends = [_ends(each) for each in found]
        if not self.rising:
            ends = [(-high, -low) for low, high in ends]
        if len(ends) < 2:
            return Reproduced.UNKNOWN
        back = any(after[1] < before[0] for before, after in itertools.pairwise(ends))
        if back or ends[-1][1] < ends[0][0]:
            return Reproduced.NO
        bounded = all(math.isfinite(low) or math.isfinite(high) for low, high in ends)
        return Reproduced.YES if bounded and ends[-1][0] > ends[0][1] else Reproduced.UNKNOWN

    def __str__(self) -> str:
        return "rising" if self.rising else "falling"


def _ends(quantity: Quantity) -> tuple[float, float]:
    low, high = quantity.interval
    return -math.inf if low is None else low, math.inf if high is None else high
