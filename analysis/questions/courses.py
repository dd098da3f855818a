"""Steps to target and seconds per step over batch sizes, on a number of devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array, percentiles
from analysis.estimate.fitting import Fit
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

    def ends(self, confidence: float) -> tuple[Array, Array]:
        """Of the interval of ``steps`` times ``seconds``, shape ``[K]``; NaN without resamples."""
        low, high = percentiles(self.resampled, confidence)
        return low * self.seconds, high * self.seconds


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
    fit: Fit,
    throughput: Throughput,
    optimizer: str,
    devices: int,
    *,
    span: tuple[float, float] | None = None,
    among: Callable[[float, float], Array] = candidates,
) -> Course | None:
    """Steps and seconds over the batch sizes that the fit covers and that have a step time; ``None`` without one.

    Args:
        fit: steps to target.
        throughput: seconds per step.
        optimizer: whose.
        devices: devices that share a step.
        span: look at these batch sizes instead of those the fit covers.
        among: which batch sizes from the first to the second number.
    """
    known = throughput.span(optimizer, devices)
    if known is None:
        return None
    covered = span or (fit.batch_sizes[0], fit.batch_sizes[-1])
    sizes = among(max(known[0], covered[0]), min(known[1], covered[1]))
    if not len(sizes):
        return None
    return Course(
        devices,
        sizes,
        throughput.seconds_per_step(optimizer, sizes, devices),
        np.exp(fit.estimate.log_steps(sizes)),
        np.exp(fit.resampled.log_steps(sizes)) if len(fit.resampled_log_steps) else np.empty((0, len(sizes))),
    )


def courses_of(
    fit: Fit,
    throughput: Throughput,
    optimizer: str,
    most: int,
    among: Callable[[int], Callable[[float, float], Array]] = lambda devices: candidates,
) -> list[Course]:
    """On every number of devices up to ``most`` that is worth a look; ``among`` gives that of :func:`course`."""
    found = (
        course(fit, throughput, optimizer, devices, among=among(devices))
        for devices in throughput.device_counts(optimizer, most)
    )
    return [entry for entry in found if entry is not None]
