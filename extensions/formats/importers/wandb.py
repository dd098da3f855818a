"""Format ``wandb``: runs of Weights & Biases, from its server, from exported tables and from files of offline runs.

History is always read in full: ``run.scan_history``, never ``run.history``, which is a sample.

The ``.wandb`` file of an offline run is a log in the format of LevelDB whose records are protocol buffers: a header of
7 bytes, then blocks of 32 KiB. A block holds records: checksum (CRC-32 of kind and data, 4 bytes), length (2), kind (1:
whole, 2: first, 3: middle, 4: last part), data. If no further header fits into a block, the rest is padding. See
``wandb/sdk/internal/datastore.py`` and https://github.com/google/leveldb/blob/main/doc/log_format.md.
"""

import contextlib
import dataclasses
import json
import netrc
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from analysis.read.cells import shown
from analysis.read.importers.base import (
    ASK_SECONDS,
    COLUMNS,
    IMPORTERS,
    Claim,
    ImportedRun,
    Importer,
    from_zero,
    run_of,
)
from analysis.read.importers.files import below, read
from analysis.read.importers.settings import AXES, Settings
from analysis.read.table import SUFFIXES, Sheet, header_of, of_rows, read_table, table_paths
from cbs.errors import DataError, needed, reason

STEP, SUFFIX = "_step", ".wandb"
_STEP_OF_CHART = "Step"
_STEP_OF_TRAINER, _COUNTER = "trainer/global_step", "/global_step"  # Of Lightning's ``WandbLogger``; of it and others

_ADDRESS = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)?")
_LOWEST, _HIGHEST = "__MIN", "__MAX"
_COUNTS_LOGS = (
    f"steps are {STEP}, the step of wandb.log: without step= it counts calls, not optimizer updates; if the runs "
    "log a step of their own, give it with --column step=THEIRS"
)
_ALL = "to have all, import entity/project/run, or export pandas.DataFrame(run.scan_history())"

_BLOCK, _HEADER = 32768, 7  # bytes, as in the log of LevelDB
_IDENT = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4  # which part of a record a chunk is
_COPY = "copy it again, or sync the run with 'wandb sync' and import entity/project/run"


@IMPORTERS.register("wandb")
class Wandb(Importer):
    """``entity/project``, ``entity/project/run``, an exported CSV, or ``.wandb`` files of offline runs."""

    expected = f"entity/project, entity/project/run, .csv exports or {SUFFIX} files"
    marks = ((f"*{SUFFIX}",), f"{SUFFIX} files")
    address = re.compile(rb"https?://\S+?/([\w.-]+/[\w.-]+)/runs/([\w.-]+)")

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim an address, tables with the columns of an export, or ``.wandb`` files."""
        path = Path(source)
        if not path.exists():
            local = path.suffix.lower() in (*SUFFIXES, SUFFIX, ".json") or os.path.isdir(path.parts[0])
            address = not local and _ADDRESS.fullmatch(source) is not None
            return Claim(why="no file, but an address like entity/project") if address else None
        tables = table_paths(path)
        titles = header_of(tables[0]) if tables else []
        marks = [title for title in titles if title == STEP or title.endswith(_LOWEST)]
        if not marks or "run" in titles:  # with a column of run names it is a table of several runs
            return super().claims(source, settings)
        return Claim(why=f"{tables[0].name} with a column {marks[0]}", files=frozenset(tables), certainty=COLUMNS)

    def on_following(self, surroundings: Mapping[str, str]) -> str:
        """Return whether runs are online, and there is a key to read them there."""
        if _has_key(surroundings):
            return f"online runs of Weights & Biases are followed on its server, every {ASK_SECONDS:g} s"
        return (
            "the offline file of Weights & Biases is empty until a run ends, so no trial ends at the target: "
            "every trial runs to its own end; an online run (after 'wandb login') can be followed, and what the "
            "program prints, see --reads 'stdout(...)'"
        )

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        path = Path(source)
        read_runs = list((_from_files if path.exists() else _from_server)(source, settings, notes))
        read_runs = [dataclasses.replace(run, metrics=[n for n in run.metrics if n[:1] != "_"]) for run in read_runs]
        counters = {name for run in read_runs for name in run.metrics if name.endswith(_COUNTER)}
        if counters and not {*AXES} & settings.columns.keys():
            raise DataError(
                f"{source} has both {STEP}, the step of wandb.log, and {min(counters)}: say which counts updates "
                f"with --column step={min(counters)} or --column step={STEP}"
            )
        if read_runs and settings.axis(STEP)[1] == STEP:
            notes.append(_COUNTS_LOGS)
        of_trainer = settings.axis(STEP) == ("step", _STEP_OF_TRAINER)
        yield from (from_zero(run, notes) for run in read_runs) if of_trainer else read_runs


def _has_key(surroundings: Mapping[str, str]) -> bool:
    if surroundings.get("WANDB_MODE", "online") != "online":
        return False
    host = urlsplit(surroundings.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc(surroundings.get("NETRC")).authenticators(host):
            return True
    return bool(surroundings.get("WANDB_API_KEY"))


def _from_files(source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
    path, axis = Path(source), settings.axis(STEP)
    files = below(path, f"*{SUFFIX}")
    for file in files:
        history, about = _offline(file)
        table = of_rows(str(file), history)
        yield run_of(table, settings, axis, metrics=[*table.columns], files=(file,), **about)
    for file in [] if files else table_paths(path):
        table = read_table(file)
        of_chart = [title for title in table.columns if title.endswith(f" - {settings.measured}")]
        for title in of_chart:
            yield _of_chart(table, title, settings, file)
        if of_chart:
            notes.append(f"{file} is the export of a chart, which may hold fewer points than were logged; {_ALL}")
        else:
            run = run_of(table, settings, axis, name=file.stem, files=(file,))
            drawn = {title.rpartition(" - ")[2] for title in table.columns if title + _LOWEST in table.columns}
            yield dataclasses.replace(run, metrics=sorted(drawn)) if drawn else run


def _from_server(source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
    with needed("wandb", "runs on a server"):
        import wandb
    if not _ADDRESS.fullmatch(source):
        raise DataError(f"{source} is neither a file nor entity/project or entity/project/run")
    unit, axis = settings.axis(STEP)
    try:
        api = wandb.Api()
        for run in [api.run(source)] if source.count("/") == 2 else api.runs(source):
            rows = list(run.scan_history(keys=[*dict.fromkeys((settings.measured, axis))]))
            place, logged = "/".join(run.path), set(map(str, run.summary.keys()))
            if not rows and axis != STEP and settings.measured in logged:
                raise DataError(
                    f"run {place} logs {settings.measured}, but never in one call with {axis!r}; without --column "
                    f"{unit}={axis} it is read against {STEP}"
                )
            for title in settings.fact_columns:
                rows += run.scan_history(keys=[title])
            if run.state == "running":
                notes.append(f"run {place} is still running: its curve ends where it is now")
            about: dict[str, Any] = {"aliases": (run.name or run.id, run.id), "config": dict(run.config)}
            yield run_of(of_rows(place, rows), settings, (unit, axis), name=place, metrics=logged, **about)
    except (wandb.Error, ValueError, OSError) as error:
        raise DataError(
            f"cannot read {source} from Weights & Biases: {reason(error).rstrip('.')}; check the name and 'wandb login'"
        ) from None


def _of_chart(table: Sheet, title: str, settings: Settings, file: Path) -> ImportedRun:
    """Return the run of a column ``NAME - METRIC`` of an exported chart, which must not have merged points; its first
    column is the x axis: ``Step`` for :data:`STEP`, or whatever the user chose."""
    if title + _LOWEST in table.columns and title + _HIGHEST in table.columns:
        rows = table.filled(title)
        low, high = (table.numbers(title + part, rows) for part in (_LOWEST, _HIGHEST))
        merged = np.flatnonzero((low != high) & ~(np.isnan(low) & np.isnan(high)))
        if len(merged):
            raise table.error(
                rows[merged[0]],
                title,
                f"merged from several points or runs (from {low[merged[0]]:g} to {high[merged[0]]:g}), so the curve is "
                f"not the one that was logged; {_ALL}",
            )
    columns = {theirs: cells for theirs, cells in table.columns.items() if theirs != title}
    one = Sheet(table.name, columns | {settings.measured: table.columns[title]}, table.places)
    axis, name = settings.axis(_STEP_OF_CHART), title.removesuffix(f" - {settings.measured}")
    drawn = next(iter(columns))
    if axis[1] == _STEP_OF_CHART != drawn:
        raise DataError(
            f"{file} is drawn against {shown(drawn)}, and whether that counts updates is not known: export the chart "
            f"with {_STEP_OF_CHART} as its x axis, or give --column step=THEIRS, examples=THEIRS or tokens=THEIRS"
        )
    return run_of(one, settings, axis, name=name, metrics=table.columns, files=(file,))


def _offline(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read a ``.wandb`` file in full: return one dictionary per logged step, with nested keys joined with dots, and
    name (``name``, ``aliases``) and settings (``config``) of the run."""
    with needed("wandb", "files of offline runs"):
        from google.protobuf.message import DecodeError
        from wandb.proto import wandb_internal_pb2
    history: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    name, label = path.stem, ""
    for data in _records(read(path, bytes), path):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        try:
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                history.append(_values_of(record.history.item))
            elif kind == "config":
                config |= _values_of(record.config.update)
            elif kind == "run":
                name, label = record.run.run_id or name, record.run.display_name
                config |= _values_of(record.run.config.update)
        except (DecodeError, ValueError, RecursionError) as error:
            raise DataError(f"{path} has a record that cannot be read: {reason(error)}; {_COPY}") from None
    return history, {"name": name, "aliases": (label or name, path.parent.name), "config": config}


def _values_of(items: Any) -> dict[str, Any]:
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def _records(content: bytes, path: Path) -> Iterator[bytes]:
    if content[:_HEADER] != _IDENT:
        raise DataError(f"{path} is not a file of an offline run of wandb; {_COPY}")
    at, parts, expected = _HEADER, b"", (_WHOLE, _FIRST)
    while at < len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        start, header = at + _HEADER, content[at : at + _HEADER]
        checksum, length, kind = struct.unpack("<IHB", header.ljust(_HEADER, b"\0"))
        data = content[start : start + length]
        if len(header) < _HEADER or len(data) < length:
            break
        if kind not in expected or zlib.crc32(bytes([kind]) + data) != checksum:
            raise DataError(f"{path} is damaged at byte {at} of {len(content)}; {_COPY}")
        at = start + length
        parts += data
        expected = (_MIDDLE, _LAST) if kind in (_FIRST, _MIDDLE) else (_WHOLE, _FIRST)
        if kind in (_WHOLE, _LAST):
            yield parts
            parts = b""
    if expected == (_MIDDLE, _LAST) or at < len(content):
        raise DataError(f"{path} is cut off in the middle of a record, at byte {at} of {len(content)}; {_COPY}")
