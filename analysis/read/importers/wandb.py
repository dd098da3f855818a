"""Format ``wandb``: runs of Weights & Biases, from its server, from exported tables and from files of offline runs.

History is always read in full: ``run.scan_history``, never ``run.history``, which is a sample.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from analysis.read.importers.base import COLUMNS, IMPORTERS, Claim, Found, Request, Run
from analysis.read.importers.files import below
from analysis.read.importers.runs import run_of
from analysis.read.importers.wandb_file import SUFFIX, read_offline
from analysis.read.table import SUFFIXES, Table, header_of, of_rows, read_table, table_paths
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

    def claims(self, source: str) -> Claim | None:
        """An address, tables with the columns of an export, or a ``.wandb`` file here or below."""
        path = Path(source)
        if not path.exists():
            local = path.suffix.lower() in (*SUFFIXES, SUFFIX, ".json") or os.path.isdir(path.parts[0])
            address = not local and _ADDRESS.fullmatch(source) is not None
            return Claim(why="no file, but an address like entity/project") if address else None
        tables = table_paths(path)
        seen = _mark(header_of(tables[0])) if tables else None
        if not seen:
            return Claim.of(_offline(path), f"{SUFFIX} files")
        return Claim(why=f"{tables[0].name} with a column {seen}", files=frozenset(tables), certainty=COLUMNS)

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
            found_none = not rows
            for title in request.fact_columns:
                rows += run.scan_history(keys=[title])
            logged = set(map(str, run.summary.keys()))
            place = "/".join(run.path)
            if found_none and axis != STEP and request.metric in logged:
                raise DataError(
                    f"run {place} logs {request.metric}, but never in one call with {axis!r}; without --column "
                    f"{unit}={axis} it is read against {STEP}"
                )
            metrics |= logged
            if run.state == "running":
                notes.append(f"run {place} is still running: its curve ends where it is now")
            runs.append(
                run_of(
                    of_rows(place, rows),
                    request,
                    (unit, axis),
                    name=place,
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
            run_of(
                of_rows(str(file), offline.history),
                request,
                (unit, axis),
                name=name,
                aliases=(offline.name or name, file.parent.name),
                config=offline.config,
            )
        )
        read.append(file)
    notes = [_COUNTS_LOGS] if axis == STEP else []
    return Found(
        runs=runs, metrics=sorted(name for name in metrics if not name.startswith("_")), files=read, notes=notes
    )


def _from_tables(tables: Iterable[Path], request: Request) -> Found:
    runs, metrics, notes, files = [], set[str](), [], []
    unit, axis = request.axis(STEP)
    for path in tables:
        table = read_table(path)
        of_chart = [title for title in table.columns if title.endswith(f" - {request.metric}")]
        files.append(path)
        metrics |= set(table.columns)
        if of_chart:
            runs += [_of_chart(table, title, request) for title in of_chart]
            notes.append(
                f"{path} is the export of a chart, which may hold fewer points than were logged; to have all, {_FULL}"
            )
        else:
            runs.append(run_of(table, request, (unit, axis), name=path.stem))
    if axis == STEP:
        notes.append(_COUNTS_LOGS)
    return Found(runs=runs, metrics=sorted(metrics), files=files, notes=list(dict.fromkeys(notes)))


def _of_chart(table: Table, title: str, request: Request) -> Run:
    """The run of a column ``NAME - METRIC`` of an exported chart, which must not have merged points."""
    if title + _LOWEST in table.columns and title + _HIGHEST in table.columns:
        rows = table.filled(title)
        low, high = (table.numbers(title + part, rows) for part in (_LOWEST, _HIGHEST))
        merged = np.flatnonzero((low != high) & ~(np.isnan(low) & np.isnan(high)))
        if len(merged):
            raise table.error(
                rows[merged[0]],
                title,
                f"merged from several points (from {low[merged[0]]:g} to {high[merged[0]]:g}), so the curve is not the "
                f"one that was logged; {_FULL}",
            )
    columns = {theirs: cells for theirs, cells in table.columns.items() if theirs != title}
    one = Table(table.name, columns | {request.metric: table.columns[title]}, table.places)
    return run_of(
        one, request, request.axis(next(iter(table.columns))), name=title.removesuffix(f" - {request.metric}")
    )


def _mark(header: Iterable[str]) -> str:
    """The column that tells an export; one with the names of runs is a table of several."""
    titles = list(header)
    marks = [title for title in titles if title == STEP or title.endswith(_LOWEST)]
    return marks[0] if marks and "run" not in titles else ""


def _offline(path: Path) -> list[Path]:
    return below(path, lambda name: name.endswith(SUFFIX))
