"""Generic table formats: ``table`` in long form, ``jsonl`` and ``csv`` with one file per run.

A ``table`` is CSV, TSV or Parquet with one row per measurement and a column ``run``. The log of a training script needs
no such column, and a column ``lr`` or ``seed`` in it is a measurement like any other: the learning rate of that step.
Facts about its run come from elsewhere: its name, or a table of runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.formatting import plural
from analysis.read import cells
from analysis.read.importers.base import ANY_TABLE, IMPORTERS, Claim, ImportedRun, Importer, run_of
from analysis.read.importers.files import below, read_text
from analysis.read.importers.settings import AXES, Settings
from analysis.read.importers.titles import settled
from analysis.read.table import Sheet, header_of, of_rows, read_table, table_paths
from cbs.errors import DataError

_OF_RAY, _FEW = "result.json", 5


@IMPORTERS.register("table")
class LongTable(Importer):
    """Columns ``run``, ``step`` (or ``examples`` or ``tokens``), the metric, and any facts about the run."""

    expected = "a file that ends in .csv, .tsv or .parquet, or a folder of them"

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim any table, or a folder with tables directly in it."""
        paths = table_paths(Path(source)) if Path(source).exists() else []
        if not paths:
            return None
        titles = ", ".join(sorted(cells.shown(title, quote=False) for title in header_of(paths[0]) if title))
        which = "" if paths == [Path(source)] else f"{plural(len(paths), 'table')}, {paths[0].name} with "
        return Claim(why=f"{which}columns {titles}", files=frozenset(paths), certainty=ANY_TABLE)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield the runs of one table, or of all tables in a folder; a run must not continue in another table."""
        for path in table_paths(Path(source)):
            table = read_table(path)
            settings = settled(table, settings)
            names = pd.Series(_names(table, settings))
            for name, chosen in names.groupby(names, sort=False):
                part = table.rows(chosen.index)
                run = _run(part, settings, name=str(name), named=True, files=(path,))
                if (np.diff(run.axis) <= 0).any():
                    _one_kind(part, run.name)
                yield run


def _names(table: Sheet, settings: Settings) -> list[str]:
    title = settings.columns.get("run", "run")
    if title not in table.columns and "run" in settings.constants:
        return [settings.constants["run"]] * len(table.places)
    remedy = (
        "rename one with --column run=THEIRS, or --set run=NAME where the table is one run, or --format csv where "
        "every file is one, or --format final_losses where every row is a run of its own"
    )
    for row, cell in enumerate(table.need(title, remedy)):
        if cells.empty(cell):
            raise table.error(row, title, "it is empty; name the run or remove the row")
    return [str(cell).strip() for cell in table.columns[title]]


def _one_kind(table: Sheet, run: str) -> None:
    """Raise ``DataError`` if a column of a few words says that the rows of a run, whose steps are not in order, are of
    several kinds, such as the names of metrics in MLflow's history."""
    for title, column in table.columns.items():
        words = dict.fromkeys(str(cell) for cell in column if not cells.empty(cell))
        if 1 < len(words) <= _FEW and pd.to_numeric(pd.Series(list(words)), errors="coerce").isna().all():
            raise DataError(
                f"{table.name}: the steps of run {run} are not in order, and its rows differ in {cells.shown(title)} "
                f"({', '.join(words)}): keep the rows of one kind, or leave out the column"
            )


def _run(table: Sheet, settings: Settings, **about: Any) -> ImportedRun:
    """Return the run of a table whose axis may have any of our names."""
    unit = next((name for name in AXES if name in table.columns), "step")
    return run_of(table, settings, settings.axis(unit, unit), **about)


class _Logs(Importer):
    """A file, or all files of a folder and below, with one run each."""

    def table(self, path: Path) -> Sheet:
        """Return the measurements of one file."""
        return read_table(path)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        for path in self.files(source):
            table = self.table(path)
            name = path.name if path == Path(source) else str(path.relative_to(source))
            aliases = (str(path), path.stem)
            yield _run(table, settings, name=name, aliases=aliases, files=(path,))


@IMPORTERS.register("jsonl")
class JsonLines(_Logs):
    """A JSON object per line, as in Ray's ``result.json``; objects in it are columns ``config/lr``, as in its CSV."""

    expected = "a file that ends in .jsonl, or Ray's result.json, or a folder of them"
    marks = ("*.jsonl", "files of JSON lines")

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim files of these names."""
        ours = [path for path in self.files(source) if path.suffix == ".jsonl" or path.name == _OF_RAY]
        return Claim.of(ours, self.marks[1])

    def files(self, source: str) -> list[Path]:
        """Return the given file, or all files of both names below a folder."""
        top = Path(source)
        return super().files(source) if top.is_file() else sorted([*super().files(source), *below(top, _OF_RAY)])

    def table(self, path: Path) -> Sheet:
        rows = []
        # not splitlines: JSON texts may contain other line separators, such as U+2028
        for number, line in enumerate(read_text(path, "write it in UTF-8").split("\n"), start=1):
            try:
                row = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError):
                row = line
            if isinstance(row, dict):
                rows.append(dict(_levels(row)))
            elif row is not None:
                raise DataError(f"{path}, line {number}: not a JSON object; write one per line, or remove the line")
        return of_rows(str(path), rows)


def _levels(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of an object and of those in it, by keys that are joined as Ray does it."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{key}/{name}", each) for name, each in _levels(value))
        else:
            yield key, value


@IMPORTERS.register("csv")
class CsvLog(_Logs):
    """A CSV file with a header. Never detected automatically: a CSV file may hold many runs, see format ``table``."""

    expected = "a file that ends in .csv, or a folder of them"
    marks = ("*.csv", "CSV files")

    def claims(self, source: str, settings: Settings) -> Claim | None:
        return None
