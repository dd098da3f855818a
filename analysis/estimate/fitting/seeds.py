"""Seeds far from their siblings: runs that differ from those of the same batch size by more than seeds do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, stdtr

from analysis.arrays import Array
from analysis.estimate.fitting.data import Trials, winners

FEWEST_SIBLINGS = 2
LEAST_FACTOR = 1.5
"""A seed nearer to its siblings than this is not named, however alike they are."""

_LEVEL = 0.01
"""Probability that any seed of a curve is named where none is far."""


@dataclass(frozen=True)
class FarSeed:
    """One of them.

    Attributes:
        place: index of its batch size.
        column: of the table at that batch size.
        factor: its steps to target over the geometric mean of its siblings'.
    """

    place: int
    column: int
    factor: float


def far_seeds(tables: Sequence[Trials]) -> list[FarSeed]:
    """Seeds at the best learning rate whose log steps lie far from the mean of at least two siblings.

    The distance is compared by Student's t, at 1 % for all seeds of the curve together, with a variance that a few far
    seeds cannot raise: the median over batch sizes of each one's own variance over the median of its chi-squared
    distribution, at half the degrees of freedom of all.
    """
    logs = [_winning(table, row) for table, row in zip(tables, winners(tables), strict=True)]
    several = [np.isfinite(row).sum() for row in logs]
    medians = [
        float(np.nanvar(row, ddof=1)) / (chdtri(count - 1, 0.5) / (count - 1))
        for row, count in zip(logs, several, strict=True)
        if count > 1
    ]
    if not medians:
        return []
    deviation = math.sqrt(float(np.median(medians)))
    freedom = max(1.0, sum(count - 1 for count in several if count > 1) / 2)
    found = []
    for place, row in enumerate(logs):
        for column in np.flatnonzero(np.isfinite(row)) if several[place] > FEWEST_SIBLINGS else ():
            siblings = np.delete(row, column)
            siblings = siblings[np.isfinite(siblings)]
            distance = float(row[column] - siblings.mean())
            unit = deviation * math.sqrt(1.0 + 1.0 / len(siblings))
            tail = float(stdtr(freedom, -abs(distance) / unit)) if unit > 0 else 0.0
            if abs(distance) > math.log(LEAST_FACTOR) and 2.0 * tail * sum(several) < _LEVEL:
                found.append(FarSeed(place, int(column), math.exp(distance)))
    # next to a far seed its siblings look far as well: one per batch size, the farthest
    farthest: dict[int, FarSeed] = {}
    for seed in sorted(found, key=lambda seed: abs(math.log(seed.factor))):
        farthest[seed.place] = seed
    return [farthest[place] for place in sorted(farthest)]


def _winning(table: Trials, row: int | None) -> Array:
    """Log steps of every seed at the best learning rate, shape ``[seeds]``; NaN where it was not reached."""
    return np.full(table.steps.shape[1], np.nan) if row is None else np.log(table.steps[row])
