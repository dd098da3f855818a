"""Format ``tensorboard``: folders with event files, one run each."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from analysis.read import cells
from analysis.read.importers.base import IMPORTERS, Claim, Request, Run
from analysis.read.importers.files import below
from analysis.read.importers.runs import in_folder, joined, run_of
from cbs.errors import DataError, MissingDependencyError, reason

_EVENTS = "tfevents"
_LENGTH, _CHECKSUM = 8, 4


@IMPORTERS.register("tensorboard")
class TensorBoard:
    """An event file, the folder of a run, or a folder of runs; the metric is a scalar tag."""

    expected = f"event files, which have {_EVENTS} in their names"

    def claims(self, source: str) -> Claim | None:
        """An event file, or a folder with one somewhere below."""
        return Claim.of(below(Path(source), _is_events), "event files")

    def read(self, source: str, request: Request, notes: list[str]) -> Iterator[Run]:
        """All points of the tag of every run: nothing is downsampled."""
        path, axis = Path(source), request.axis("step")
        files = [path] if path.is_file() else below(path, _is_events)
        wanted = dict.fromkeys([request.metric, axis[1], *request.fact_columns])
        for folder in sorted({file.parent for file in files}):
            here = tuple(file for file in files if file.parent == folder)
            for file in here:
                check_whole(file)
            series, tags = _series(path if path.is_file() else folder, wanted)
            table = joined(str(folder), series, request.metric)
            yield run_of(table, request, axis, metrics=tags, files=here, **in_folder(folder, path))


def _is_events(name: str) -> bool:
    return _EVENTS in name


def _series(path: Path, wanted: Iterable[str]) -> tuple[dict[str, list[tuple[int, float]]], set[str]]:
    """Steps and values of those of the tags that are there, and all tags there are."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise _needed() from None
    events: Any = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    found, tag = {}, ""
    try:
        events.Reload()
        scalars, tensors = events.Tags()["scalars"], events.Tags()["tensors"]
        for tag in wanted:
            if tag in scalars:
                found[tag] = [(point.step, point.value) for point in events.Scalars(tag)]
            elif tag in tensors:
                points = [(point.step, make_ndarray(point.tensor_proto)) for point in events.Tensors(tag)]
                found[tag] = [(step, cells.number(array.item())) for step, array in points]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"cannot read {tag!r} in {path}: {reason(error)}; it must be a scalar") from None
    return found, {*scalars, *tensors}


def check_whole(path: Path) -> None:
    """Check that an event file holds whole records only: TensorBoard itself drops what follows damage, silently.

    A record is its length (8 bytes), a checksum (4), the event, a checksum (4).

    Raises:
        DataError: naming the byte at which the damage begins.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    except ImportError:
        raise _needed() from None
    records, end, start = 0, 0, 0
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while end < size:
                start = end
                header = file.read(_LENGTH + _CHECKSUM)
                length = struct.unpack("<Q", header[:_LENGTH])[0] if len(header) == _LENGTH + _CHECKSUM else size
                end = start + _LENGTH + length + 2 * _CHECKSUM
                if end > size:
                    raise DataError(
                        f"{path} is cut off in the middle of an event, at byte {start} of {size}; copy it again, or "
                        f"where the run was killed while it wrote: truncate --size={start} {path}"
                    )
                file.seek(end)
                records += 1
        loaded = sum(1 for _ in RawEventFileLoader(str(path)).Load())
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}; check its permissions") from None
    if not records:
        raise DataError(f"{path} is empty; remove it or copy it again")
    if loaded < records:
        raise DataError(f"{path} is damaged: only {loaded} of {records} events can be read; copy it again")


def _needed() -> MissingDependencyError:
    return MissingDependencyError('event files need tensorboard: pip install "critical-batch-size[tensorboard]"')
