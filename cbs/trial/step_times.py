"""The table of step times that ``cbs throughput`` writes and an analysis reads.

One row per measurement, as CSV or Parquet:

==========================  ================================================================================
``batch_size``              examples per step, an integer
``devices``                 devices that shared the step, an integer; 1 where the column is missing
``seconds_per_step``        or ``examples_per_second`` of all devices together; one of the two
``optimizer``               optional; empty where the row applies to every optimizer
``price_per_device_hour``   optional, in any currency; one price per optimizer and number of devices
``seconds_low``             optional, with the next two: 95 % interval of the seconds, from Student's t for the
``seconds_high``            mean of their logarithms over the repetitions
``repetitions``             an integer, 2 or more
==========================  ================================================================================
"""

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cbs.files import atomic_file

SPREAD = ("seconds_low", "seconds_high", "repetitions")  # Columns that describe the spread of the measurements

# Confidence level of the interval of the seconds
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """One measurement.

    Attributes:
        batch_size: examples per step.
        devices: number of devices that shared the step.
        seconds: duration of one step; infinity if the batch does not fit into memory, which no table holds.
        optimizer: name of the optimizer; empty for any.
        price: price of one device per hour; ``None`` where it is unknown.
        interval: 95 % interval of the seconds, around their geometric mean over the repetitions; ``None`` where their
            spread is unknown.
        repetitions: number of repetitions of the measurement.
    """

    batch_size: int
    devices: int = 1
    seconds: float
    optimizer: str = ""
    price: float | None = None
    interval: tuple[float, float] | None = None
    repetitions: int = 1


def write_step_times(rows: Iterable[StepTime], path: str | os.PathLike[str]) -> None:
    """Write measurements as CSV, atomically; prices are left out, because a measurement does not know them.

    Raises:
        ResultsError: if the file cannot be written.
    """
    with (
        atomic_file(Path(path), remedy="; choose another file") as draft,
        open(draft, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["optimizer", "batch_size", "devices", "seconds_per_step", *SPREAD])
        for row in rows:
            spread = ("", "", "") if row.interval is None else (*map(repr, row.interval), row.repetitions)
            writer.writerow([row.optimizer, row.batch_size, row.devices, repr(row.seconds), *spread])
