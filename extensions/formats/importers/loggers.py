"""What loggers write: ``metrics.csv`` of Lightning's ``CSVLogger`` with ``hparams.yaml`` beside it, and event files.

A ``Trainer`` of Lightning passes any of its loggers the number of updates made before the batch, starting from 0,
whatever the accumulation, and validates before it counts on: what has the step 99 was measured after 100 updates. It
logs an ``epoch``, too; without one, steps are what the user's code passed to ``log_metrics``.
"""

import dataclasses
import math
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from analysis.read import cells
from analysis.read.importers.base import (
    COLUMNS,
    IMPORTERS,
    Claim,
    ImportedRun,
    Importer,
    from_zero,
    in_folder,
    joined,
    run_of,
)
from analysis.read.importers.epochs import TIMES
from analysis.read.importers.files import below, read_mapping
from analysis.read.importers.settings import Settings
from analysis.read.table import header_of, read_table
from cbs.errors import DataError, needed, reason

METRICS, HPARAMS = "metrics.csv", "hparams.yaml"
STEP, EPOCH = "step", "epoch"
_LENGTH, _CHECKSUM = 8, 4  # bytes around a record of TFRecord: its length, and a checksum of each of both
_OF_KERAS = "epoch_"
_PER_EPOCH = (
    "Keras logs tags that begin with epoch_ against epochs, which have fewer updates the larger the batch is: take "
    "evaluation_..._vs_iterations, or give updates with --column step=TAG, or --examples-per-epoch N"
)
_POINTER = b"version "  # What a file that Git LFS has not fetched begins with, in place of the first length


# A row of the file holds what was logged in one call, so training and validation fill different columns.
@IMPORTERS.register("lightning")
class Lightning(Importer):
    """A ``metrics.csv``, the folder of a run (``version_0``), or a folder of runs (``lightning_logs``)."""

    expected = "the metrics.csv of a CSVLogger, or a folder with one below"
    marks = ((METRICS,), METRICS)

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim files of that name that have settings beside them or the columns of a Trainer."""
        files = below(Path(source), METRICS)
        if sure := [path for path in files if (path.parent / HPARAMS).exists()]:
            return Claim.of(sure, f"{METRICS} with {HPARAMS} beside it")
        seen = [path for path in files if {STEP, EPOCH} <= set(header_of(path))]
        return Claim.of(seen, f"{METRICS} with the columns {EPOCH} and {STEP}", COLUMNS)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield one run per file, named after its folder."""
        top, axis = Path(source), settings.axis(STEP)
        for path in self.files(source):
            table, about = read_table(path), path.parent / HPARAMS
            config = read_mapping(about, "copy it again from where the run was trained") if about.exists() else {}
            run = run_of(table, settings, axis, config=config, files=(path,), **in_folder(path.parent, top))
            of_trainer = axis == (STEP, STEP) and EPOCH in table.columns
            yield from_zero(run, notes) if of_trainer else run


@IMPORTERS.register("tensorboard")
class TensorBoard(Importer):
    """An event file, the folder of a run, or a folder of runs; the metric is a scalar tag."""

    expected = "event files, which have tfevents in their names"
    marks = (("*tfevents*",), "event files")

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield every run with all points of the tag; nothing is downsampled."""
        path, axis = Path(source), settings.axis(STEP)
        files = self.files(source)
        wanted = dict.fromkeys([settings.measured, axis[1], *settings.fact_columns])
        for folder in sorted({file.parent for file in files}):
            here = tuple(file for file in files if file.parent == folder)
            series: dict[str, list[tuple[int, float]]] = {}
            tags: set[str] = set()
            counted, trained = 0, False
            for file in here:
                for tag, step, value in _scalars(file, wanted):
                    tags.add(tag)
                    if tag in wanted:
                        series.setdefault(tag, []).append((step, value))
                    else:
                        counted = max(counted, step)
                    trained |= settings.measured not in series and step > 0
            table = joined(str(folder), {tag: series[tag] for tag in wanted if tag in series}, settings.measured)
            about: dict[str, Any] = {"metrics": tags, "files": here, "counted": counted, **in_folder(folder, path)}
            run = run_of(table, settings, axis, **about)
            of_trainer = axis == (STEP, STEP) and EPOCH in tags and (folder / HPARAMS).exists()
            if settings.examples_per_epoch and not trained and counted >= TIMES * run.axis.max(initial=1):
                # logged before anything that counts updates had begun
                after = run.axis > 0
                run = dataclasses.replace(run, axis=run.axis[after], values=run.values[after])
            yield from_zero(run, notes) if of_trainer else run
        per_epoch = settings.measured.startswith(_OF_KERAS) and settings.examples_per_epoch is None
        if per_epoch and axis == (STEP, STEP):
            notes.append(_PER_EPOCH)


def _scalars(path: Path, wanted: Container[str]) -> Iterator[tuple[str, int, float]]:
    """Yield tag, step and value of every point in an event file; the value is NaN for tags that are not wanted.

    A record is its length (8 bytes), a checksum (4), the event, a checksum (4). TensorBoard silently drops what follows
    damage; here a file has to be intact, and the byte at which damage begins is reported.
    """
    with needed("tensorboard", "event files"):
        from google.protobuf.message import DecodeError
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_ndarray
    tag, end = "", 0
    try:
        for record in RawEventFileLoader(str(path)).Load():
            end += _LENGTH + len(record) + 2 * _CHECKSUM
            event = Event.FromString(record)
            for point in event.summary.value:
                tag, kind = point.tag, point.WhichOneof("value")
                if kind in ("simple_value", "tensor"):
                    value = point.simple_value if kind == "simple_value" else math.nan
                    if kind == "tensor" and tag in wanted:
                        value = cells.number(make_ndarray(point.tensor).item())
                    yield tag, event.step, value
        size = path.stat().st_size
        with open(path, "rb") as file:
            file.seek(end)
            length = file.read(_LENGTH)
    except (OSError, ValueError, TypeError, DecodeError) as error:
        raise DataError(f"cannot read {tag!r} in {path}: {reason(error)}; it must be a scalar") from None
    if not size:
        raise DataError(f"{path} is empty; remove it or copy it again")
    if end == size:
        return
    if not end and length == _POINTER:
        raise DataError(f"{path} is what Git LFS leaves in place of the file: run git lfs pull there, or copy the file")
    if len(length) < _LENGTH or end + _LENGTH + int.from_bytes(length, "little") + 2 * _CHECKSUM > size:
        raise DataError(
            f"{path} is cut off in the middle of an event, at byte {end} of {size}; copy it again, or where the run "
            f"was killed while it wrote: truncate --size={end} {path}"
        )
    raise DataError(f"{path} is damaged at byte {end} of {size}; copy it again")
