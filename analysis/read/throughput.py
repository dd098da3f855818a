"""Seconds per step: from a measured table, or from an assumption that is stated wherever it is used.

The table, which ``cbs throughput`` writes, has one row per measurement, as CSV, TSV or Parquet:

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

import math
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import stdtrit

from analysis.formatting import plural
from analysis.quantities import Array
from analysis.read.cells import empty, positive, whole
from analysis.read.table import Sheet, read_table
from cbs.errors import ConfigError, DataError
from cbs.registry.choices import parse_choice, read_choice

SPREAD = ("seconds_low", "seconds_high", "repetitions")  # Columns that describe the spread of the measurements

# Confidence level of the interval of the seconds
LEVEL = 0.95

# Ratio of the seconds of a step to those of one with fewer examples below which one of the two is taken for an
# error.
SHRINKING = 0.5

_FAR = 20.0  # Bound of the drawn logarithms of seconds, since Student's t with two repetitions is unbounded

# Parsers of the columns of the table
_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "batch_size": whole,
    "devices": whole,
    "seconds_per_step": positive,
    "examples_per_second": positive,
    "optimizer": lambda cell: "" if empty(cell) else str(cell).strip(),
    "price_per_device_hour": positive,
    "seconds_low": lambda cell: None if empty(cell) else positive(cell),
    "seconds_high": lambda cell: None if empty(cell) else positive(cell),
    "repetitions": lambda cell: None if empty(cell) else whole(cell, 2),
}


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


class Throughput(Protocol):
    """Seconds per step of an optimizer at a batch size on a number of devices."""

    @property
    def statement(self) -> str:
        """Where the numbers come from, and whether they are assumed."""

    def seconds_per_step(self, optimizer: str, batch_sizes: Array, devices: int) -> Array:
        """Return seconds per step in the shape of ``batch_sizes``; NaN outside :meth:`span`."""

    def drawn(self, optimizer: str, batch_sizes: Array, devices: int, count: int, seed: int) -> Array:
        """Return random factors on :meth:`seconds_per_step` that represent its measurement error, shape ``[count,
        *batch_sizes.shape]``, one draw for all batch sizes per row; all 1 if the error is unknown."""
        return np.ones((count, *np.shape(batch_sizes)))

    @property
    def exact(self) -> bool:
        """Whether the spread of the step times is unknown, so that intervals and probabilities do not include it."""
        return True

    @property
    def spread(self) -> str:
        """Statement of how intervals and probabilities include the uncertainty of step times."""
        return "the intervals hold the uncertainty of the steps alone, as if the step times were exact"

    def span(self, optimizer: str, devices: int) -> tuple[float, float] | None:
        """Return the smallest and largest batch size whose step time is known; ``None`` if there is none."""

    def device_counts(self, optimizer: str, most: int) -> list[int]:
        """Return the numbers of devices worth considering, up to and including ``most``, in increasing order."""

    def batch_sizes(self, optimizer: str, devices: int) -> list[int]:
        """Return the batch sizes that were measured on this number of devices; empty for an assumption."""
        return []

    def assumption(self, optimizer: str, devices: int) -> str:
        """Return what is assumed for step times on this number of devices, in addition to :attr:`statement`; empty if
        they were measured."""
        return ""

    def price(self, optimizer: str, devices: int) -> float | None:
        """Return the price of a device-hour, or ``None``."""
        return None


@dataclass(frozen=True)
class StepTimeTable:
    """A table of measured step times.

    Between two measured batch sizes on the same number of devices the log of the seconds is linear in the log of the
    batch size; beyond them nothing is known. On a number of devices that was not measured, a step is assumed to take as
    long as on the nearest measured number at the same examples per device, as if communication cost nothing.

    Attributes:
        rows: the measurements.
        source: where ``rows`` come from, in words.
    """

    rows: tuple[StepTime, ...]
    source: str = "a table"

    @property
    def statement(self) -> str:
        return f"step times measured, from {self.source}; between measured batch sizes interpolated in log-log"

    def seconds_per_step(self, optimizer: str, batch_sizes: Array, devices: int) -> Array:
        count, rows = self._nearest(optimizer, devices)
        at = np.log(np.asarray(batch_sizes, dtype=float))
        if not rows:
            return np.full(at.shape, np.nan)
        x = np.log([row.batch_size * (devices / count) for row in rows])
        y = np.log([row.seconds for row in rows])
        # rounding errors in the logs must not exclude the measured ends
        inside = (at >= x[0] - 1e-9) & (at <= x[-1] + 1e-9)
        return np.where(inside, np.exp(np.interp(at, x, y)), np.nan)

    def drawn(self, optimizer: str, batch_sizes: Array, devices: int, count: int, seed: int) -> Array:
        nearest, rows = self._nearest(optimizer, devices)
        sizes = np.asarray(batch_sizes, dtype=float)
        logs = np.zeros((count, *sizes.shape))
        x = np.log([row.batch_size * (devices / nearest) for row in rows])
        for index, row in enumerate(rows):
            if row.interval is None or row.repetitions < 2:
                continue
            share = np.interp(np.log(sizes), x, np.eye(len(rows))[index])
            # the same row gets the same draws in every call
            about = zlib.crc32(f"{row.optimizer} {row.devices} {row.batch_size}".encode())
            draws = np.random.default_rng((seed, about)).standard_t(row.repetitions - 1, count)
            error = math.log(row.interval[1] / row.interval[0]) / (2 * _quantile(row.repetitions))
            logs += np.multiply.outer(np.clip(draws * error, -_FAR, _FAR), share)
        return np.exp(logs)

    @property
    def exact(self) -> bool:
        return all(row.interval is None for row in self.rows)

    @property
    def spread(self) -> str:
        known = [row.repetitions for row in self.rows if row.interval is not None]
        if not known:
            return "the intervals hold the uncertainty of the steps alone: the spread of the step times is unknown"
        few, most = min(known), max(known)
        times = f"{few} repetitions" if few == most else f"{few} to {most} repetitions"
        some = "" if len(known) == len(self.rows) else f", known of {len(known)} of {len(self.rows)}"
        return f"the intervals hold the uncertainty of the steps and of the step times ({times}{some})"

    def span(self, optimizer: str, devices: int) -> tuple[float, float] | None:
        count, rows = self._nearest(optimizer, devices)
        return (rows[0].batch_size * devices / count, rows[-1].batch_size * devices / count) if rows else None

    def device_counts(self, optimizer: str, most: int) -> list[int]:
        measured = self._measured(optimizer)
        others = powers_of_two(most) if len(measured) == 1 else []
        return sorted({*(count for count in measured if count <= most), *others, most}) if measured else []

    def batch_sizes(self, optimizer: str, devices: int) -> list[int]:
        return [row.batch_size for row in self._measured(optimizer).get(devices, [])]

    def assumption(self, optimizer: str, devices: int) -> str:
        counts, name = sorted(self._measured(optimizer)), self._name(optimizer)
        alike = not name or read_choice(name) == read_choice(optimizer)
        other = "" if alike else f"step times of {name} are used for {optimizer}"
        if not counts or devices in counts:
            return other
        first, several = ", ".join(map(str, counts[:-1])), counts[1:]
        where = f"{first} and {counts[-1]} devices" if several else plural(counts[0], "device")
        taken = "the nearest of these" if several else where
        return f"{other}{'; ' if other else ''}" + (
            f"step times were measured on {where} alone; on other numbers of devices they are taken to be those on "
            f"{taken} at the same examples per device, as if communication cost nothing"
        )

    def price(self, optimizer: str, devices: int) -> float | None:
        _, rows = self._nearest(optimizer, devices)
        return rows[0].price if rows else None

    def _measured(self, optimizer: str) -> dict[int, list[StepTime]]:
        """Return the rows by number of devices, with increasing batch sizes."""
        name = self._name(optimizer)
        step_times: dict[int, list[StepTime]] = {}
        for row in sorted(self.rows, key=lambda row: row.batch_size):
            if row.optimizer == name:
                step_times.setdefault(row.devices, []).append(row)
        return step_times

    def _name(self, optimizer: str) -> str:
        """Return the name of the rows to use for an optimizer: rows with its label, or else rows with its name and the
        most of its options, or else rows without an optimizer (``""``)."""
        names, wanted = {row.optimizer for row in self.rows}, read_choice(optimizer)
        options = {name: len(read.options) for name in names if name and (read := read_choice(name)).covers(wanted)}
        return optimizer if optimizer in names else max(options, key=options.__getitem__, default="")

    def _nearest(self, optimizer: str, devices: int) -> tuple[int, list[StepTime]]:
        """Return the measured number of devices nearest in ratio (the larger of two equally near), and its rows, if
        any."""
        measured = self._measured(optimizer)
        return min(measured.items(), key=lambda item: (abs(math.log(item[0] / devices)), -item[0]), default=(1, []))


@dataclass(frozen=True, kw_only=True)
class Assumed(Throughput):
    """A step takes ``latency + batch_size / (devices * examples_per_second)`` seconds.

    The number of examples per device need not be an integer.

    Attributes:
        examples_per_second: throughput of one device.
        max_batch_per_device: largest number of examples per device and step; ``None`` for no limit.
        latency: seconds of a step that do not depend on the batch size.
    """

    examples_per_second: float
    max_batch_per_device: int | None = None
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.examples_per_second) and self.examples_per_second > 0):
            raise ConfigError(f"examples per second per device must be above 0, got {self.examples_per_second:g}")
        if self.max_batch_per_device is not None and self.max_batch_per_device < 1:
            raise ConfigError(f"the largest batch per device must be at least 1, got {self.max_batch_per_device}")
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise ConfigError(f"the latency of a step must be at least 0 seconds, got {self.latency:g}")

    @property
    def statement(self) -> str:
        limit = (
            "" if self.max_batch_per_device is None else f", at most {self.max_batch_per_device} examples per device"
        )
        latency = f"{self.latency:g} s + " if self.latency else ""
        return (
            f"assumed, not measured: a step takes {latency}batch size / (devices x {self.examples_per_second:g} "
            f"examples/s){limit}"
        )

    def seconds_per_step(self, optimizer: str, batch_sizes: Array, devices: int) -> Array:
        low, high = self.span(optimizer, devices)
        sizes = np.asarray(batch_sizes, dtype=float)
        seconds = self.latency + sizes / (devices * self.examples_per_second)
        return np.where((sizes >= low) & (sizes <= high), seconds, np.nan)

    def span(self, optimizer: str, devices: int) -> tuple[float, float]:
        limit = math.inf if self.max_batch_per_device is None else float(devices * self.max_batch_per_device)
        return float(devices), limit

    def device_counts(self, optimizer: str, most: int) -> list[int]:
        return sorted({*powers_of_two(most), most})


def read_throughput(path: str | os.PathLike[str]) -> StepTimeTable:
    """Read a table of step times, see the module docstring; errors name the file, the row and the remedy."""
    table = read_table(path)
    table.known(_COLUMNS)
    table.need("batch_size", "add it, in examples per step")
    if ("seconds_per_step" in table.columns) == ("examples_per_second" in table.columns):
        raise DataError(
            f"{table.name}: one of the columns 'seconds_per_step' and 'examples_per_second' is needed, not both"
        )
    rows: dict[tuple[str, int, int], StepTime] = {}
    prices: dict[tuple[str, int], float | None] = {}
    for row in range(len(table.places)):
        time = _step_time(table, row)
        about = f"batch size {time.batch_size} on {plural(time.devices, 'device')}"
        about += f" with {time.optimizer}" if time.optimizer else ""
        if rows.setdefault((time.optimizer, time.devices, time.batch_size), time) is not time:
            raise DataError(f"{table.name}: {about} appears twice; keep one row")
        if prices.setdefault((time.optimizer, time.devices), time.price) != time.price:
            raise DataError(f"{table.name}: {about} has another price than the same devices elsewhere; give one price")
    _check_growth(table.name, list(rows.values()))
    return StepTimeTable(tuple(rows.values()), table.name)


def _check_growth(name: str, rows: Sequence[StepTime]) -> None:
    """Refuse a step that takes far less time than one of a smaller batch on the same devices, whatever their intervals
    leave open."""
    slowest: dict[tuple[str, int], StepTime] = {}
    for row in sorted(rows, key=lambda row: row.batch_size):
        before = slowest.get((row.optimizer, row.devices), row)
        longest, shortest = (row.interval or (0.0, row.seconds))[1], (before.interval or (before.seconds,))[0]
        if longest < SHRINKING * shortest:
            raise DataError(
                f"{name}: on {plural(row.devices, 'device')} a step of batch size {row.batch_size} takes "
                f"{row.seconds:.3g} s and one of {before.batch_size} {before.seconds:.3g} s: correct the wrong one, or "
                "measure it again"
            )
        slowest[row.optimizer, row.devices] = max(before, row, key=lambda each: each.seconds)


def assumed(text: str) -> Assumed:
    """Parse step times from text: ``assumed(examples_per_second_per_device=2000, max_batch_per_device=32,
    step_latency=0.004)``, of which the last two are optional.

    Raises:
        ConfigError: if an argument is missing, unknown or out of its domain; the message names it.
    """
    given = dict(parse_choice(text).options)
    speed = given.pop("examples_per_second_per_device", None)
    most, latency = given.pop("max_batch_per_device", None), given.pop("step_latency", 0.0)
    numbers = type(speed) in (int, float) and type(latency) in (int, float)
    if given or not numbers or not (most is None or type(most) is int):
        raise ConfigError(
            f"{text!r} must be assumed(examples_per_second_per_device=NUMBER), to which "
            "max_batch_per_device=WHOLE_NUMBER and step_latency=SECONDS may be added"
        )
    return Assumed(examples_per_second=float(speed), max_batch_per_device=most, latency=float(latency))


def powers_of_two(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to ``most``."""
    return [1 << power for power in range(most.bit_length())]


def of_logs(logs: Array) -> tuple[float, tuple[float, float] | None]:
    """Return the geometric mean of repeated measurements, given as natural logs of shape ``[n]``, and its interval.

    The interval is at :data:`LEVEL` by Student's t; ``None`` if there is only one measurement.
    """
    middle, count = float(np.mean(logs)), len(logs)
    if count < 2:
        return math.exp(middle), None
    half = _quantile(count) * float(np.std(logs, ddof=1)) / math.sqrt(count)
    return math.exp(middle), (math.exp(middle - half), math.exp(min(middle + half, _FAR)))


def _quantile(count: int) -> float:
    """Return the quantile of Student's t for the mean of ``count`` measurements."""
    return float(stdtrit(count - 1, 0.5 + LEVEL / 2))


def _step_time(table: Sheet, row: int) -> StepTime:
    cells = {name: table.cell(row, name, _COLUMNS[name]) for name in table.columns}
    low, high, repetitions = (cells.pop(name, None) for name in SPREAD)
    given = [each is not None for each in (low, high, repetitions)]
    rate = cells.pop("examples_per_second", None)
    seconds = cells.pop("seconds_per_step", None) or cells["batch_size"] / rate
    if not (math.isfinite(seconds) and seconds > 0):
        raise table.error(row, "examples_per_second", "it is out of range; give examples per second of all devices")
    if any(given) and not (all(given) and low <= seconds <= high):
        raise table.error(
            row,
            SPREAD[0],
            f"{', '.join(SPREAD)} go together, and the interval holds the seconds; correct or remove them",
        )
    spread = {"interval": (low, high), "repetitions": repetitions} if all(given) else {}
    return StepTime(seconds=seconds, price=cells.pop("price_per_device_hour", None), **cells, **spread)
