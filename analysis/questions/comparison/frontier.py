"""The compute-time plane: wall time to the target against devices.

Essential AI, "Practical Efficiency of Muon" (2505.02222): per optimizer one iso-loss curve along batch sizes. Here the
time is steps to target, by the fit, times seconds per step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.arrays import Array, percentiles
from analysis.estimate.quantity import Plain
from analysis.estimate.result import Answer
from analysis.questions.courses import courses_of
from analysis.read.throughput import Throughput
from cbs.store import finite_or_none


@dataclass(frozen=True, kw_only=True)
class PlanePoint(Plain):
    """One way to reach the target.

    Attributes:
        optimizer: which.
        devices: devices that share a step.
        batch_size: examples.
        steps: steps to target by the fit.
        seconds: wall time to target, validation not included.
        seconds_low, seconds_high: interval of ``seconds``, from that of the steps; ``None`` without resamples.
        on_frontier: whether no other point of the optimizer has fewer devices and is as fast, or is faster on as many.
        assumption: what the step time takes for granted; empty where it was measured.
    """

    optimizer: str
    devices: int
    batch_size: int
    steps: float
    seconds: float
    seconds_low: float | None
    seconds_high: float | None
    on_frontier: bool
    assumption: str


def undominated(devices: Array, seconds: Array) -> Array:
    """Whether no other point has at most as many devices and at most as much time, and less of one of them.

    Args:
        devices: shape ``[P]``.
        seconds: shape ``[P]``.

    Returns:
        Booleans, shape ``[P]``; points that agree in both keep each other.
    """
    fastest = pd.Series(seconds).groupby(devices).min()
    fewer = fastest.cummin().shift(fill_value=np.inf)
    return np.asarray((seconds == fastest.loc[devices]) & (seconds < fewer.loc[devices]))


def plane(answer: Answer, throughput: Throughput) -> list[PlanePoint]:
    """Every measured batch size on every number of devices, by increasing devices and batch size.

    Batch sizes are those that reached the target, those of the table, and the ends of what has a step time; all within
    the batch sizes that reached the target. Empty without a fit, or where none of them has a step time.
    """
    if answer.fit is None:
        return []
    optimizer, confidence = answer.group.optimizer, answer.confidence
    found = [
        PlanePoint(
            optimizer=optimizer,
            devices=entry.devices,
            batch_size=int(size),
            steps=float(steps),
            seconds=float(seconds),
            seconds_low=finite_or_none(float(low)),
            seconds_high=finite_or_none(float(high)),
            on_frontier=False,
            assumption=throughput.assumption(optimizer, entry.devices),
        )
        for entry in courses_of(answer, throughput, most_devices(answer, throughput), measured=True)
        for size, steps, seconds, low, high in zip(
            entry.batch_sizes, entry.steps, entry.time, *percentiles(entry.resampled_time, confidence), strict=True
        )
    ]
    kept = undominated(*(np.array([getattr(point, name) for point in found]) for name in ("devices", "seconds")))
    return [replace(point, on_frontier=bool(on)) for point, on in zip(found, kept, strict=True)]


def most_devices(answer: Answer, throughput: Throughput) -> int:
    """The most devices worth a look: as many as the largest measured batch size has examples, or as were measured."""
    assert answer.fit is not None
    largest = int(answer.fit.batch_sizes[-1])
    measured = [
        count
        for count in throughput.device_counts(answer.group.optimizer, largest)
        if throughput.batch_sizes(answer.group.optimizer, count)
    ]
    return max(measured) if len(measured) > 1 else 1 << (largest.bit_length() - 1)
