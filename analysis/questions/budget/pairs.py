"""Two optimizers at one budget: their difference at every batch size, and where one overtakes the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.arrays import UNKNOWN, Quantity
from analysis.config import AnalysisConfig
from analysis.estimate.margin import largest_within
from analysis.estimate.objective import Losses
from analysis.estimate.together import Difference, difference, shuffled


@dataclass(frozen=True, kw_only=True)
class DifferenceAt(Difference):
    """Loss of one optimizer minus that of the other at a batch size, in the unit of the metric; positive if the other
    is better."""

    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Comparison of one optimizer with another.

    Attributes:
        at: differences at every batch size at which both were run.
        overtakes: batch size from which on the other one is better although it is not below; interpolated in ln B. No
            value if neither overtakes.
        overtaker: the one that is better at larger batch sizes; empty without a value.
    """

    optimizer: str
    other: str
    at: tuple[DifferenceAt, ...]
    overtakes: Quantity = UNKNOWN
    overtaker: str = ""


def pair(names: tuple[str, str], first: Losses, second: Losses, config: AnalysisConfig) -> Pair:
    """Return the first minus the second where neither loss is a bound; the draws of the two have in common what a
    seed does to both alike (:func:`analysis.estimate.together.alike`)."""
    order = shuffled(first.draws, second.draws, len(second.drawn), [config.seed, 1])
    second = replace(second, drawn=second.drawn[order], draws=second.draws and second.draws.taken(order))
    both = np.intersect1d(first.sizes[~first.edges], second.sizes[~second.edges])
    one, two = np.searchsorted(first.sizes, both), np.searchsorted(second.sizes, both)
    known, at = len(first.drawn) and len(second.drawn), []
    for size, mine, its in zip(both, one, two, strict=True):
        found = Difference(float(first.values[mine] - second.values[its]))
        if known:
            found = difference(first.drawn[:, mine], second.drawn[:, its], config.confidence)
        at.append(DifferenceAt(**vars(found), batch_size=int(size)))
    overtakes, rising = _overtakes(at, first, second, config.confidence) if known else (UNKNOWN, False)
    who = "" if overtakes.value is None else names[1] if rising else names[0]
    return Pair(optimizer=names[0], other=names[1], at=tuple(at), overtakes=overtakes, overtaker=who)


def _overtakes(at: list[DifferenceAt], first: Losses, second: Losses, confidence: float) -> tuple[Quantity, bool]:
    """Return where the difference passes 0, with its interval, if it differs significantly from 0 on both sides and in
    sign; and whether it rises."""
    told = [each for each in at if (each.interval[0] or -1.0) > 0 or (each.interval[1] or 1.0) < 0]
    signs = np.sign([each.value or 0.0 for each in told])
    changes = np.flatnonzero(np.diff(signs))
    if len(changes) != 1:
        return UNKNOWN, False
    below, above = told[changes[0]], told[changes[0] + 1]
    places = np.linspace(np.log(below.batch_size), np.log(above.batch_size), 64)
    sign = float(signs[changes[0] + 1])
    rows = sign * (first.at(places) - second.at(places))
    passed = np.minimum(largest_within(places, rows, 0.0, np.zeros(len(rows))), places[-1])
    low, value, high = np.exp(np.quantile(passed, [0.5 - confidence / 2, 0.5, 0.5 + confidence / 2])).tolist()
    return Quantity(value, (low, high)), sign > 0
