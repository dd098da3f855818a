"""Format ``tensorboard``: folders with event files, one run each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from analysis.read import cells
from analysis.read.importers.base import IMPORTERS, Claim, Run
from analysis.read.importers.files import below
from analysis.read.importers.runs import in_folder, joined, run_of
from analysis.read.importers.settings import Settings
from cbs.errors import DataError, MissingDependencyError, reason

_EVENTS = "*tfevents*"
_LENGTH, _CHECKSUM = 8, 4


@IMPORTERS.register("tensorboard")
class TensorBoard:
    """An event file, the folder of a run, or a folder of runs; the metric is a scalar tag."""

    expected = "event files, which have tfevents in their names"

    def claims(self, source: str) -> Claim | None:
        """An event file, or a folder with one somewhere below."""
        return Claim.of(below(Path(source), _EVENTS), "event files")

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[Run]:
        """All points of the tag of every run: nothing is downsampled."""
        path, axis = Path(source), settings.axis("step")
        files = [path] if path.is_file() else below(path, _EVENTS)
        wanted = dict.fromkeys([settings.measured, axis[1], *settings.fact_columns])
        for folder in sorted({file.parent for file in files}):
            here = tuple(file for file in files if file.parent == folder)
            for file in here:
                check_whole(file)
            series, tags = _series(path if path.is_file() else folder, wanted)
            table = joined(str(folder), series, settings.measured)
            yield run_of(table, settings, axis, metrics=tags, files=here, **in_folder(folder, path))


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
    try:
        size, end = path.stat().st_size, 0
        for event in RawEventFileLoader(str(path)).Load():
            end += _LENGTH + len(event) + 2 * _CHECKSUM
        with open(path, "rb") as file:
            file.seek(end)
            length = file.read(_LENGTH)
    except OSError as error:
        raise DataError(f"cannot read {path}: {reason(error)}; check its permissions") from None
    if not size:
        raise DataError(f"{path} is empty; remove it or copy it again")
    if end == size:
        return
    if len(length) < _LENGTH or end + _LENGTH + int.from_bytes(length, "little") + 2 * _CHECKSUM > size:
        raise DataError(
            f"{path} is cut off in the middle of an event, at byte {end} of {size}; copy it again, or where the run "
            f"was killed while it wrote: truncate --size={end} {path}"
        )
    raise DataError(f"{path} is damaged at byte {end} of {size}; copy it again")


def _needed() -> MissingDependencyError:
    return MissingDependencyError('event files need tensorboard: pip install "critical-batch-size[tensorboard]"')
