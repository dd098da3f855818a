"""Two optimizers at one budget: their difference at every batch size, and where one overtakes the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.arrays import UNKNOWN, Array, Interval, Quantity, percentiles
from analysis.estimate.independent import shuffled
from analysis.estimate.objective import BestLosses
from analysis.questions.budget.equivalence import zeros


@dataclass(frozen=True, kw_only=True)
class DifferenceAt(Quantity):
    """Loss of one optimizer minus that of the other at a batch size, in the unit of the metric; positive if the other
    is better.

    Attributes:
        probability: probability that the other is better; ``None`` without resamples.
    """

    batch_size: int
    probability: float | None = None


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


def pair(
    names: tuple[str, str],
    sizes: tuple[Array, Array],
    found: tuple[BestLosses, BestLosses],
    bounds: tuple[np.ndarray, np.ndarray],
    confidence: float,
    seed: int,
) -> Pair:
    """Return the first minus the second where neither loss is a bound; the resamples of the two are independent."""
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
    """Return where the difference passes 0, with its interval, if both its ends differ significantly from 0 and in
    sign; and whether it rises."""
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
