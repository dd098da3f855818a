"""Format ``wandb``: runs of Weights & Biases, from its server, from exported tables and from files of offline runs.

History is always read in full: ``run.scan_history``, never ``run.history``, which is a sample.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis.read.importers import cells
from analysis.read.importers.base import IMPORTERS, Found, Request, Run
from analysis.read.importers.files import SUFFIXES, Sheet, header_of, read_sheet, table_paths
from analysis.read.importers.wandb_file import SUFFIX, read_offline
from cbs.errors import DataError, MissingDependencyError, reason

STEP = "_step"
_ADDRESS = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)?")
_LOWEST, _HIGHEST = "__MIN", "__MAX"
_COUNTS_LOGS = (
    f"steps are {STEP}, the step of wandb.log: without step= it counts calls, not optimizer updates; where the runs "
    "log their own, give it with --column step=THEIRS"
)
_FULL = "import entity/project/run, or export pandas.DataFrame(run.scan_history())"


@IMPORTERS.register("wandb")
class Wandb:
    """``entity/project``, ``entity/project/run``, an exported CSV, or ``.wandb`` files of offline runs."""

    def claims(self, source: str) -> bool:
        """An address, a table with the columns of an export, or a ``.wandb`` file here or below."""
        path = Path(source)
        if not path.exists():
            local = path.suffix.lower() in (*SUFFIXES, SUFFIX, ".json") or os.path.isdir(path.parts[0])
            return not local and _ADDRESS.fullmatch(source) is not None
        if _offline(path):
            return True
        return any(_is_export(header_of(table)) for table in table_paths(path)[:1])

    def read(self, source: str, request: Request) -> Found:
        """Runs of a server, of files of offline runs, or of tables."""
        path = Path(source)
        if not path.exists():
            return _from_server(source, request)
        files = _offline(path)
        if files:
            return _from_files(files, request)
        tables = table_paths(path)
        if not tables:
            raise DataError(f"nothing of Weights & Biases at {source}: expected .csv exports or {SUFFIX} files")
        return _from_tables(tables, request)


def _from_server(source: str, request: Request) -> Found:
    try:
        import wandb
    except ImportError:
        raise MissingDependencyError('runs on a server need wandb: pip install "critical-batch-size[wandb]"') from None
    if not _ADDRESS.fullmatch(source):
        raise DataError(f"{source} is neither a file nor entity/project or entity/project/run")
    unit, axis = request.axis(STEP)
    runs, metrics, notes = [], set[str](), [_COUNTS_LOGS] if axis == STEP else []
    try:
        api = wandb.Api()
        found = [api.run(source)] if source.count("/") == 2 else list(api.runs(source))
        for run in found:
            rows = list(run.scan_history(keys=[*dict.fromkeys((request.metric, axis))]))
            logged = set(map(str, run.summary.keys()))
            place = "/".join(run.path)
            if not rows and axis != STEP and request.metric in logged:
                raise DataError(
                    f"run {place} logs {request.metric}, but never in one call with {axis!r}; without --column "
                    f"{unit}={axis} it is read against {STEP}"
                )
            metrics |= logged
            if run.state == "running":
                notes.append(f"run {place} is still running: its curve ends where it is now")
            runs.append(
                _run(
                    rows,
                    request,
                    unit,
                    axis,
                    name=place,
                    place=place,
                    aliases=(run.name or run.id, run.id),
                    config=dict(run.config),
                )
            )
    except (wandb.Error, ValueError, OSError) as error:
        raise DataError(
            f"cannot read {source} from Weights & Biases: {reason(error).rstrip('.')}; check the name and 'wandb login'"
        ) from None
    if not runs:
        raise DataError(f"{source} has no runs")
    return Found(runs=runs, metrics=sorted(name for name in metrics if not name.startswith("_")), notes=notes)


def _from_files(files: Iterable[Path], request: Request) -> Found:
    unit, axis = request.axis(STEP)
    runs, metrics, read = [], set[str](), []
    for file in files:
        offline = read_offline(file)
        metrics |= {name for row in offline.history for name in row}
        name = offline.run_id or file.stem
        runs.append(
            _run(
                offline.history,
                request,
                unit,
                axis,
                name=name,
                place=str(file),
                aliases=(offline.name or name, file.parent.name),
                config=offline.config,
            )
        )
        read.append(file)
    notes = [_COUNTS_LOGS] if axis == STEP else []
    return Found(
        runs=runs, metrics=sorted(name for name in metrics if not name.startswith("_")), files=read, notes=notes
    )


def _run(rows: Iterable[Mapping[str, Any]], request: Request, unit: str, axis: str, **about: Any) -> Run:
    """A run from the rows of its history; rows without the metric were other calls of ``wandb.log``."""
    points = []
    for row in rows:
        if row.get(request.metric) is None:
            continue
        try:
            if row.get(axis) is None:
                raise ValueError(f"a row with {request.metric} has no {axis!r}")
            points.append((cells.number(row[axis]), cells.number(row[request.metric])))
        except ValueError as error:
            raise DataError(
                f"run {about['name']} ({about['place']}): {error}; name others with --metric or --column step="
            ) from None
    table = np.array(points, dtype=float).reshape(-1, 2)
    return Run(axis=table[:, 0], values=table[:, 1], unit=unit, **about)


def _from_tables(tables: Iterable[Path], request: Request) -> Found:
    runs, metrics, notes, files = [], set[str](), [], []
    for table in tables:
        sheet = read_sheet(table)
        of_chart = [name for name in sheet.columns if name.endswith(f" - {request.metric}")]
        files.append(table)
        if of_chart:
            runs += _of_chart(sheet, of_chart, request)
            notes.append(
                f"{table} is the export of a chart, which may hold fewer points than were logged; to have all, {_FULL}"
            )
        else:
            runs.append(_of_history(sheet, request))
        metrics |= set(sheet.columns)
    if any(request.axis(STEP)[1] == STEP and table.suffix for table in files):
        notes.append(_COUNTS_LOGS)
    return Found(runs=runs, metrics=sorted(metrics), files=files, notes=list(dict.fromkeys(notes)))


def _of_history(sheet: Sheet, request: Request) -> Run:
    """The one run of an exported history; its name is that of the file."""
    unit, axis = request.axis(STEP)
    for column, flag in ((request.metric, "--metric"), (axis, f"--column {unit}=THEIRS")):
        if column not in sheet.columns:
            raise DataError(f"{sheet.path} has no column {column!r}; it has {', '.join(sheet.columns)}; see {flag}")
    rows = sheet.filled(request.metric)
    return Run(
        name=sheet.path.stem,
        place=str(sheet.path),
        axis=sheet.numbers(axis, rows=rows, minimum=0.0),
        values=sheet.numbers(request.metric, rows=rows),
        unit=unit,
    )


def _of_chart(sheet: Sheet, columns: Iterable[str], request: Request) -> list[Run]:
    """One run per column ``NAME - METRIC`` of an exported chart, which must not have merged points."""
    unit, axis = request.axis(next(iter(sheet.columns)))
    if axis not in sheet.columns:
        raise DataError(f"{sheet.path} has no column {axis!r}; it has {', '.join(sheet.columns)}")
    runs = []
    for column in columns:
        rows = sheet.filled(column)
        values = sheet.numbers(column, rows=rows)
        if column + _LOWEST in sheet.columns and column + _HIGHEST in sheet.columns:
            low, high = (sheet.numbers(column + part, rows=rows) for part in (_LOWEST, _HIGHEST))
            merged = np.flatnonzero((low != high) & ~(np.isnan(low) & np.isnan(high)))
            if len(merged):
                raise DataError(
                    f"{sheet.path}, {sheet.lines[rows[merged[0]]]}: {column!r} was merged from several points (from "
                    f"{low[merged[0]]:g} to {high[merged[0]]:g}), so the curve is not the one that was logged; {_FULL}"
                )
        name = column.removesuffix(f" - {request.metric}")
        runs.append(
            Run(
                name=name,
                place=str(sheet.path),
                axis=sheet.numbers(axis, rows=rows, minimum=0.0),
                values=values,
                unit=unit,
            )
        )
    return runs


def _is_export(header: Iterable[str]) -> bool:
    return any(name == STEP or name.endswith(_LOWEST) for name in header)


def _offline(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == SUFFIX else []
    return sorted(Path(root) / name for root, _, names in os.walk(path) for name in names if name.endswith(SUFFIX))
