"""The compute-time plane: wall time to the target against devices.

Essential AI, "Practical Efficiency of Muon" (2505.02222): per optimizer one iso-loss curve along batch sizes. Here the
time is steps to target, by the fit, times seconds per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting import Fit
from analysis.estimate.result import Answer
from analysis.read.throughput import Throughput


@dataclass(frozen=True, kw_only=True)
class PlanePoint:
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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def undominated(devices: Array, seconds: Array) -> Array:
    """Whether no other point has at most as many devices and at most as much time, and less of one of them.

    Args:
        devices: shape ``[P]``.
        seconds: shape ``[P]``.

    Returns:
        Booleans, shape ``[P]``; points that agree in both keep each other.
    """
    order = np.lexsort((seconds, devices))
    kept = np.zeros(len(order), dtype=bool)
    best = np.inf
    for count in np.unique(devices):
        here = order[devices[order] == count]
        fastest = seconds[here[0]]
        if fastest < best:
            kept[here[seconds[here] == fastest]] = True
            best = fastest
    return kept


def plane(answer: Answer, throughput: Throughput) -> list[PlanePoint]:
    """Every measured batch size on every number of devices, by increasing devices and batch size.

    Batch sizes are those that reached the target, those of the table, and the ends of what has a step time; all within
    the batch sizes that reached the target. Empty without a fit, or where none of them has a step time.
    """
    fit, optimizer = answer.fit, answer.group.optimizer
    if fit is None:
        return []
    found = []
    for devices in throughput.device_counts(optimizer, most_devices(answer, throughput)):
        sizes = _batch_sizes(fit, throughput, optimizer, devices)
        if len(sizes):
            found.append((devices, sizes, throughput.seconds_per_step(optimizer, sizes, devices)))
    if not found:
        return []
    counts = np.concatenate([np.full(len(sizes), devices) for devices, sizes, _ in found])
    sizes, each = (np.concatenate([row[index] for row in found]) for index in (1, 2))
    steps = np.exp(fit.estimate.log_steps(sizes))
    low, high = steps_interval(fit, sizes, answer.confidence)
    kept = undominated(counts, steps * each)
    return [
        PlanePoint(
            optimizer=optimizer,
            devices=int(counts[index]),
            batch_size=int(sizes[index]),
            steps=float(steps[index]),
            seconds=float(steps[index] * each[index]),
            seconds_low=None if np.isnan(low[index]) else float(low[index] * each[index]),
            seconds_high=None if np.isnan(high[index]) else float(high[index] * each[index]),
            on_frontier=bool(kept[index]),
            assumption=throughput.assumption(optimizer, int(counts[index])),
        )
        for index in range(len(sizes))
    ]


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


def steps_interval(fit: Fit, batch_sizes: Array, confidence: float) -> tuple[Array, Array]:
    """Ends of the interval of the fitted steps at every batch size; NaN without resamples."""
    if not len(fit.resampled_log_steps):
        none = np.full(len(batch_sizes), np.nan)
        return none, none
    tail = 0.5 - confidence / 2
    low, high = np.exp(np.quantile(fit.resampled.log_steps(batch_sizes), [tail, 1 - tail], axis=0))
    return low, high


def _batch_sizes(fit: Fit, throughput: Throughput, optimizer: str, devices: int) -> Array:
    span = throughput.span(optimizer, devices)
    if span is None:
        return np.empty(0)
    low, high = max(span[0], fit.batch_sizes[0]), min(span[1], fit.batch_sizes[-1])
    wanted: Sequence[float] = [*fit.batch_sizes, *throughput.batch_sizes(optimizer, devices), np.ceil(low), high // 1]
    return np.unique([size for size in wanted if low <= size <= high])
