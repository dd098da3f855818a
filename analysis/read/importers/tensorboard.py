"""Format ``tensorboard``: folders with event files, one run each."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from analysis.read.importers import cells
from analysis.read.importers.base import IMPORTERS, Found, Request, Run
from cbs.errors import DataError, MissingDependencyError, reason

_EVENTS = "tfevents"
_LENGTH, _CHECKSUM = 8, 4


@IMPORTERS.register("tensorboard")
class TensorBoard:
    """An event file, the folder of a run, or a folder of runs; the metric is a scalar tag."""

    def claims(self, source: str) -> bool:
        """An event file, or a folder with one somewhere below."""
        path = Path(source)
        return _EVENTS in path.name if path.is_file() else bool(_folders(path))

    def read(self, source: str, request: Request) -> Found:
        """All points of the tag of every run: nothing is downsampled."""
        path = Path(source)
        folders = {path.parent: [path]} if path.is_file() else _folders(path)
        if not folders:
            raise DataError(f"no event files at {source}: their names have {_EVENTS} in them")
        unit, theirs = request.axis("step")
        if theirs != "step":
            raise DataError(f"events have one axis, 'step'; --column {unit}={theirs} cannot be read, {unit}=step can")
        runs, tags = [], set()
        for folder, files in sorted(folders.items()):
            for file in files:
                check_whole(file)
            steps, values, there = _points(path if path.is_file() else folder, request.metric)
            tags |= there
            relative = os.path.relpath(folder, path)
            name = folder.resolve().name if relative in (".", "..") else relative
            runs.append(
                Run(
                    name=name,
                    place=str(folder),
                    axis=np.array(steps, dtype=float),
                    values=np.array(values, dtype=float),
                    unit=unit,
                    aliases=(str(folder), folder.resolve().name),
                )
            )
        return Found(runs=runs, metrics=sorted(tags), files=[file for files in folders.values() for file in files])


def _folders(top: Path) -> dict[Path, list[Path]]:
    found = {}
    for root, _, names in os.walk(top):
        files = sorted(Path(root) / name for name in names if _EVENTS in name)
        if files:
            found[Path(root)] = files
    return found


def _points(path: Path, tag: str) -> tuple[list[int], list[float], set[str]]:
    """Steps and values of a tag, and the tags there are."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise _needed() from None
    events: Any = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    try:
        events.Reload()
        scalars, tensors = events.Tags()["scalars"], events.Tags()["tensors"]
        if tag in scalars:
            points = events.Scalars(tag)
            return [point.step for point in points], [point.value for point in points], {*scalars, *tensors}
        if tag not in tensors:
            return [], [], {*scalars, *tensors}
        points = events.Tensors(tag)
        arrays = [make_ndarray(point.tensor_proto) for point in points]
        values = [cells.number(array.item()) for array in arrays]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"cannot read {tag!r} in {path}: {reason(error)}; it must be a scalar") from None
    return [point.step for point in points], values, {*scalars, *tensors}


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
        raise DataError(f"cannot read {path}: {error.strerror or error}; check its permissions") from None
    if not records:
        raise DataError(f"{path} is empty; remove it or copy it again")
    if loaded < records:
        raise DataError(f"{path} is damaged: only {loaded} of {records} events can be read; copy it again")


def _needed() -> MissingDependencyError:
    return MissingDependencyError('event files need tensorboard: pip install "critical-batch-size[tensorboard]"')
