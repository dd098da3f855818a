"""Format ``wandb``: runs of Weights & Biases, from its server, from exported tables and from files of offline runs.

History is always read in full: ``run.scan_history``, never ``run.history``, which is a sample.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from analysis.read.importers.base import COLUMNS, IMPORTERS, Claim, Run
from analysis.read.importers.files import below
from analysis.read.importers.runs import run_of
from analysis.read.importers.settings import Settings
from analysis.read.importers.wandb_file import SUFFIX, read_offline
from analysis.read.table import SUFFIXES, Sheet, header_of, of_rows, read_table, table_paths
from cbs.errors import DataError, MissingDependencyError, reason

STEP = "_step"
_ADDRESS = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)?")
_LOWEST, _HIGHEST = "__MIN", "__MAX"
_COUNTS_LOGS = (
    f"steps are {STEP}, the step of wandb.log: without step= it counts calls, not optimizer updates; where the runs "
    "log their own, give it with --column step=THEIRS"
)
_ALL = "to have all, import entity/project/run, or export pandas.DataFrame(run.scan_history())"


@IMPORTERS.register("wandb")
class Wandb:
    """``entity/project``, ``entity/project/run``, an exported CSV, or ``.wandb`` files of offline runs."""

    expected = f"entity/project, entity/project/run, .csv exports or {SUFFIX} files"

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

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[Run]:
        """Runs of a server, of files of offline runs, or of tables."""
        path = Path(source)
        found = list((_from_files if path.exists() else _from_server)(source, settings, notes))
        if found and settings.axis(STEP)[1] == STEP:
            notes.append(_COUNTS_LOGS)
        yield from found


def _from_files(source: str, settings: Settings, notes: list[str]) -> Iterator[Run]:
    path, (unit, axis) = Path(source), settings.axis(STEP)
    files = _offline(path)
    for file in files:
        offline = read_offline(file)
        table, name = of_rows(str(file), offline.history), offline.run_id or file.stem
        about: dict[str, Any] = {"aliases": (offline.name or name, file.parent.name), "config": offline.config}
        yield run_of(table, settings, (unit, axis), name=name, metrics=_logged(table.columns), files=(file,), **about)
    for file in [] if files else table_paths(path):
        table = read_table(file)
        of_chart = [title for title in table.columns if title.endswith(f" - {settings.measured}")]
        for title in of_chart:
            yield _of_chart(table, title, settings, file)
        if of_chart:
            notes.append(f"{file} is the export of a chart, which may hold fewer points than were logged; {_ALL}")
        else:
            yield run_of(table, settings, (unit, axis), name=file.stem, files=(file,))


def _from_server(source: str, settings: Settings, notes: list[str]) -> Iterator[Run]:
    try:
        import wandb
    except ImportError:
        raise MissingDependencyError('runs on a server need wandb: pip install "critical-batch-size[wandb]"') from None
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
            yield run_of(of_rows(place, rows), settings, (unit, axis), name=place, metrics=_logged(logged), **about)
    except (wandb.Error, ValueError, OSError) as error:
        raise DataError(
            f"cannot read {source} from Weights & Biases: {reason(error).rstrip('.')}; check the name and 'wandb login'"
        ) from None


def _logged(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]


def _of_chart(table: Sheet, title: str, settings: Settings, file: Path) -> Run:
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
                f"one that was logged; {_ALL}",
            )
    columns = {theirs: cells for theirs, cells in table.columns.items() if theirs != title}
    one = Sheet(table.name, columns | {settings.measured: table.columns[title]}, table.places)
    axis, name = settings.axis(next(iter(table.columns))), title.removesuffix(f" - {settings.measured}")
    return run_of(one, settings, axis, name=name, metrics=table.columns, files=(file,))


def _mark(header: Iterable[str]) -> str:
    """The column that tells an export; one with the names of runs is a table of several."""
    titles = list(header)
    marks = [title for title in titles if title == STEP or title.endswith(_LOWEST)]
    return marks[0] if marks and "run" not in titles else ""


def _offline(path: Path) -> list[Path]:
    return below(path, f"*{SUFFIX}")
