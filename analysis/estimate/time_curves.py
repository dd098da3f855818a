"""Steps to target and seconds per step over batch sizes on a number of devices, and the plane of compute against time.

The plane shows wall time to the target against devices, with one iso-loss curve along batch sizes per optimizer
(Essential AI, "Practical Efficiency of Muon", 2505.02222): steps to target by the draws, times seconds per step.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimate.result import Answer
from analysis.quantities import Array, percentiles
from analysis.read.throughput import Throughput, powers_of_two

_CANDIDATES = 200  # A factor of 1.07 apart over six decades: the least time and cost are flatter than that


@dataclass(frozen=True)
class TimeCurve:
    """Steps and seconds over batch sizes on one number of devices.

    Attributes:
        batch_sizes: batch sizes, shape ``[K]``, increasing.
        seconds: seconds per step, shape ``[K]``.
        steps: expected steps to target, shape ``[K]``.
        drawn: draws of them, shape ``[R, K]``.
        errors: random factors on the seconds that represent their measurement error, shape ``[R, K]``.
    """

    devices: int
    batch_sizes: Array
    seconds: Array
    steps: Array
    drawn: Array
    errors: Array

    @property
    def time(self) -> Array:
        """Time to the target in seconds, shape ``[K]``."""
        return self.steps * self.seconds

    @property
    def drawn_time(self) -> Array:
        """Draws of the time to the target, shape ``[R, K]``."""
        return self.drawn * self.seconds * self.errors


def candidates(low: float, high: float) -> Array:
    """Return whole batch sizes from ``low`` to ``high``: all of them if they are few, otherwise about 200 in equal
    ratios, with both ends and every power of two."""
    first, last = math.ceil(low), math.floor(high)
    if first > last:
        return np.empty(0)
    if last - first < _CANDIDATES:
        return np.arange(first, last + 1, dtype=float)
    spaced = np.rint(np.geomspace(first, last, _CANDIDATES))
    # people train with powers of two, which the spacing would miss
    powers = [size for size in powers_of_two(last) if size >= first]
    return np.unique(np.concatenate([spaced, powers]))


def course(
    answer: Answer,
    throughput: Throughput,
    devices: int,
    *,
    span: tuple[float, float] | None = None,
    measured: bool = False,
) -> TimeCurve | None:
    """Return steps and seconds over the batch sizes from the smallest to the largest that reached the target (or
    ``span``) that have a step time; ``None`` if there are none.

    If ``measured``, only batch sizes that reached the target or are in the table, and both ends, are used.
    """
    draws, optimizer = answer.draws, answer.group.optimizer
    known = throughput.span(optimizer, devices)
    if draws is None or known is None:
        return None
    covered = span or (draws.batch_sizes[0], draws.batch_sizes[-1])
    low, high = max(known[0], covered[0]), min(known[1], covered[1])
    sizes = candidates(low, high)
    if measured:
        looked_at = (*draws.batch_sizes, *throughput.batch_sizes(optimizer, devices), *sizes[:1], *sizes[-1:])
        sizes = np.unique([size for size in looked_at if low <= size <= high])
    if not len(sizes):
        return None
    return TimeCurve(
        devices,
        sizes,
        throughput.seconds_per_step(optimizer, sizes, devices),
        np.exp(draws.estimate(sizes)),
        np.exp(draws.drawn(sizes)),
        throughput.drawn(optimizer, sizes, devices, draws.count, answer.config.seed),
    )


def courses_of(answer: Answer, throughput: Throughput, most: int, *, measured: bool = False) -> list[TimeCurve]:
    """Return :func:`course` for every number of devices up to ``most`` that is worth considering."""
    counts = throughput.device_counts(answer.group.optimizer, most)
    time_curves = (course(answer, throughput, devices, measured=measured) for devices in counts)
    return [entry for entry in time_curves if entry is not None]


def undominated(devices: Array, seconds: Array) -> Array:
    """Return a mask of the points that are not dominated, shape ``[P]``: no other point has at most as many devices and
    at most as much time, and less of one of them. Equal points do not dominate each other."""
    fastest = pd.Series(seconds).groupby(devices).min()
    # as fast with fewer devices is better, so equal times are dominated
    fewer = fastest.cummin().shift(fill_value=np.inf)
    return np.asarray((seconds == fastest.loc[devices]) & (seconds < fewer.loc[devices]))


def plane(answer: Answer, throughput: Throughput) -> list[dict[str, Any]]:
    """Return every measured batch size on every number of devices, by increasing devices and batch size.

    Batch sizes are those that reached the target, those of the table, and the ends of the range that has a step time,
    all within the batch sizes that reached the target. Empty without draws, or if none of them has a step time.

    Returns:
        Rows with the ``optimizer``, the ``devices`` that share a step, the ``batch_size`` in examples, the expected
        ``steps`` to target, the wall time in ``seconds`` without validation, its interval from those of the steps and
        of the step time (``seconds_low``, ``seconds_high``), the ``assumption`` of the step time (empty if it was
        measured), and whether it is ``on_frontier``, see :func:`undominated`.
    """
    if answer.draws is None:
        return []
    optimizer, tables = answer.group.optimizer, []
    for entry in courses_of(answer, throughput, most_devices(answer, throughput), measured=True):
        low, high = percentiles(entry.drawn_time, answer.confidence)
        columns = {"batch_size": entry.batch_sizes.astype(int), "steps": entry.steps, "seconds": entry.time}
        table = pd.DataFrame({"optimizer": optimizer, "devices": entry.devices, **columns})
        table["seconds_low"], table["seconds_high"] = low, high
        tables.append(table.assign(assumption=throughput.assumption(optimizer, entry.devices)))
    if not tables:
        return []
    rows = pd.concat(tables, ignore_index=True)
    rows["on_frontier"] = undominated(rows["devices"].to_numpy(), rows["seconds"].to_numpy())
    return rows.astype(object).where(rows.notna(), None).to_dict("records")


def most_devices(answer: Answer, throughput: Throughput) -> int:
    """Return the largest number of devices worth considering: as many as the largest measured batch size has examples,
    or as were measured."""
    assert answer.draws is not None
    largest = int(answer.draws.batch_sizes[-1])
    measured = [
        count
        for count in throughput.device_counts(answer.group.optimizer, largest)
        if throughput.batch_sizes(answer.group.optimizer, count)
    ]
    return max(measured) if len(measured) > 1 else 1 << (largest.bit_length() - 1)
