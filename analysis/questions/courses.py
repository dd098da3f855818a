"""Steps to target and seconds per step over batch sizes, on a number of devices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.result import Answer
from analysis.read.throughput import Throughput, powers_of_two

_CANDIDATES = 200


@dataclass(frozen=True)
class Course:
    """Steps and seconds over batch sizes on one number of devices.

    Attributes:
        devices: devices that share a step.
        batch_sizes: shape ``[K]``, increasing.
        seconds: of a step, shape ``[K]``.
        steps: to target by the fit, shape ``[K]``.
        resampled: likewise, shape ``[R, K]``.
    """

    devices: int
    batch_sizes: Array
    seconds: Array
    steps: Array
    resampled: Array

    @property
    def time(self) -> Array:
        """To the target, in seconds, shape ``[K]``."""
        return self.steps * self.seconds

    @property
    def resampled_time(self) -> Array:
        """Likewise, shape ``[R, K]``."""
        return self.resampled * self.seconds


def candidates(low: float, high: float) -> Array:
    """Whole batch sizes from ``low`` to ``high``: all of them where they are few, else about 200 in equal ratios, with
    both ends and every power of two."""
    first, last = math.ceil(low), math.floor(high)
    if first > last:
        return np.empty(0)
    if last - first < _CANDIDATES:
        return np.arange(first, last + 1, dtype=float)
    spaced = np.rint(np.geomspace(first, last, _CANDIDATES))
    powers = [size for size in powers_of_two(last) if size >= first]
    return np.unique(np.concatenate([spaced, powers]))


def course(
    answer: Answer,
    throughput: Throughput,
    devices: int,
    *,
    span: tuple[float, float] | None = None,
    measured: bool = False,
) -> Course | None:
    """Steps and seconds over the batch sizes that the fit covers and that have a step time; ``None`` without one.

    Args:
        answer: steps to target of an optimizer.
        throughput: seconds per step.
        devices: devices that share a step.
        span: look at these batch sizes instead of those the fit covers.
        measured: whether to look, beside both ends, at those alone that reached the target or are in the table.
    """
    fit, optimizer = answer.fit, answer.group.optimizer
    known = throughput.span(optimizer, devices)
    if fit is None or known is None:
        return None
    covered = span or (fit.batch_sizes[0], fit.batch_sizes[-1])
    low, high = max(known[0], covered[0]), min(known[1], covered[1])
    sizes = candidates(low, high)
    if measured:
        looked_at = (*fit.batch_sizes, *throughput.batch_sizes(optimizer, devices), *sizes[:1], *sizes[-1:])
        sizes = np.unique([size for size in looked_at if low <= size <= high])
    if not len(sizes):
        return None
    return Course(
        devices,
        sizes,
        throughput.seconds_per_step(optimizer, sizes, devices),
        np.exp(fit.estimate.log_steps(sizes)),
        np.exp(fit.resampled.log_steps(sizes)),
    )


def courses_of(answer: Answer, throughput: Throughput, most: int, *, measured: bool = False) -> list[Course]:
    """:func:`course` on every number of devices up to ``most`` that is worth a look."""
    counts = throughput.device_counts(answer.group.optimizer, most)
    found = (course(answer, throughput, devices, measured=measured) for devices in counts)
    return [entry for entry in found if entry is not None]
