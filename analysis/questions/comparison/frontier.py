"""The compute-time plane: wall time to the target against devices.

Essential AI, "Practical Efficiency of Muon" (2505.02222): per optimizer one iso-loss curve along batch sizes. Here the
time is steps to target, by the fit, times seconds per step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.arrays import Array, percentiles
from analysis.estimate.result import Answer
from analysis.questions.courses import courses_of
from analysis.read.throughput import Throughput


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


def plane(answer: Answer, throughput: Throughput) -> list[dict[str, Any]]:
    """Every measured batch size on every number of devices, by increasing devices and batch size.

    Batch sizes are those that reached the target, those of the table, and the ends of what has a step time; all within
    the batch sizes that reached the target. Empty without a fit, or where none of them has a step time.

    Returns:
        Rows of the ``optimizer``, the ``devices`` that share a step, the ``batch_size`` in examples, the ``steps`` to
        target by the fit, the wall time in ``seconds``, validation not included, its interval from that of the steps
        (``seconds_low``, ``seconds_high``; ``None`` without resamples), the ``assumption`` of the step time (empty
        where it was measured), and whether it is ``on_frontier``, see :func:`undominated`.
    """
    if answer.fit is None:
        return []
    optimizer, tables = answer.group.optimizer, []
    for entry in courses_of(answer, throughput, most_devices(answer, throughput), measured=True):
        low, high = percentiles(entry.resampled_time, answer.confidence)
        columns = {"batch_size": entry.batch_sizes.astype(int), "steps": entry.steps, "seconds": entry.time}
        table = pd.DataFrame({"optimizer": optimizer, "devices": entry.devices, **columns})
        table["seconds_low"], table["seconds_high"] = low, high
        tables.append(table.assign(assumption=throughput.assumption(optimizer, entry.devices)))
    if not tables:
        return []
    found = pd.concat(tables, ignore_index=True)
    found["on_frontier"] = undominated(found["devices"].to_numpy(), found["seconds"].to_numpy())
    return found.astype(object).where(found.notna(), None).to_dict("records")


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
