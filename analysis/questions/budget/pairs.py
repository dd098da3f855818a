"""Two optimizers at one budget: how far apart at every batch size, and where one overtakes the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.arrays import UNKNOWN, Array, Interval, Quantity, percentiles
from analysis.estimate.independent import shuffled
from analysis.estimate.objective import BestLosses
from analysis.questions.budget.equivalence import zeros


@dataclass(frozen=True, kw_only=True)
class DifferenceAt(Quantity):
    """Loss of one optimizer less that of the other at a batch size, in the unit of the metric: above 0 where the other
    is better.

    Attributes:
        probability: that the other is better; ``None`` without resamples.
    """

    batch_size: int
    probability: float | None = None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One optimizer less another.

    Attributes:
        at: one per batch size that both were run at.
        overtakes: the batch size from which on the other is better, where it is not below; interpolated in ln B. No
            value where neither overtakes.
        overtaker: which one is better at the larger batch sizes then; empty without a value.
    """

    optimizer: str
    other: str
    at: tuple[DifferenceAt, ...]
    overtakes: Quantity = UNKNOWN
    overtaker: str = ""


def pair(
    names: tuple[str, str],
    sizes: tuple[Array, Array],
    found: tuple[BestLosses, BestLosses],
    bounds: tuple[np.ndarray, np.ndarray],
    confidence: float,
    seed: int,
) -> Pair:
    """The first less the second, where neither loss is a bound; their resamples are independent."""
    both = np.intersect1d(*(own[~bound] for own, bound in zip(sizes, bounds, strict=True)))
    one, two = (np.searchsorted(own, both) for own in sizes)
    losses = found[0].losses[one] - found[1].losses[two]
    known = len(found[0].resampled) and len(found[1].resampled)
    drawn = np.empty((0, len(both)))
    if known:
        drawn = found[0].resampled[:, one] - shuffled(found[1].resampled, seed=seed)[:, two]
    ends = percentiles(drawn, confidence).T if known else np.full((len(both), 2), np.nan)
    at = tuple(
        DifferenceAt(
            value=float(losses[place]),
            interval=(float(ends[place][0]), float(ends[place][1])) if known else (None, None),
            batch_size=int(size),
            probability=float((drawn[:, place] > 0).mean()) if known else None,
        )
        for place, size in enumerate(both)
    )
    overtakes, rising = _overtakes(np.log(both), losses, drawn, confidence)
    who = "" if overtakes.value is None else names[1] if rising else names[0]
    return Pair(optimizer=names[0], other=names[1], at=at, overtakes=overtakes, overtaker=who)


def _overtakes(logs: Array, losses: Array, drawn: Array, confidence: float) -> tuple[Quantity, bool]:
    """Where the difference passes 0 if both its ends are told from 0 and differ in sign, with its interval."""
    if len(logs) < 2 or not len(drawn):
        return UNKNOWN, False
    low, high = percentiles(drawn, confidence)
    told = np.flatnonzero((low > 0) | (high < 0))
    signs = np.sign(losses[told])
    changes = np.flatnonzero(np.diff(signs))
    if len(changes) != 1:
        return UNKNOWN, False
    first, last = told[changes[0]], told[changes[0] + 1]
    rising = bool(losses[last] > 0)
    part, sign = slice(first, last + 1), 1.0 if rising else -1.0
    rows = np.vstack([losses[None], drawn])[:, part] * sign
    values = np.empty(len(rows))
    for turn, smooth in enumerate((True, False)):
        values[turn::2] = np.minimum(zeros(logs[part], rows[turn::2], smooth=smooth), logs[last])
    ends: Interval = tuple(np.exp(percentiles(values[1:], confidence)).tolist())  # type: ignore[assignment]
    return Quantity(float(np.exp(values[0])), ends), rising
