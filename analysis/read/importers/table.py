"""CSV, TSV or Parquet: format ``table``, with one row per measurement and a column ``run``; format ``final_losses``,
with one row per run.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.formatting import plural
from analysis.read import cells
from analysis.read.importers.base import ANY_TABLE, COLUMNS, IMPORTERS, Claim, ImportedRun, Importer, axis_of, run_of
from analysis.read.importers.settings import AXES, Settings
from analysis.read.importers.words import settled
from analysis.read.table import Sheet, header_of, table_paths
from analysis.read.titles import is_column
from cbs.errors import DataError

_FEW = 5  # Different words of a column that tells kinds of rows apart, at most


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
            table, settings = settled(path, settings)
            names = pd.Series(_names(table, settings))
            for name, chosen in names.groupby(names, sort=False):
                part = table.rows(chosen.index)
                run = run_of(part, settings, axis_of(part, settings), name=str(name), named=True, files=(path,))
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


@IMPORTERS.register("final_losses")
class FinalLosses(Importer):
    """Columns ``batch_size``, ``lr``, ``tokens`` (or ``examples`` or ``step``) and the metric.

    Optionally ``optimizer``, ``seed`` and other facts. A run that diverged has ``nan``.
    """

    expected = "a file that ends in .csv, .tsv or .parquet, or a folder of them, with one row per run"

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim tables with a batch size and a learning rate in every row, by whatever title, and none of runs."""
        paths = table_paths(Path(source)) if Path(source).exists() else []
        size, rate, run = (settings.columns.get(name, name) for name in ("batch_size", "lr", "run"))
        titles = [{*header_of(path)} for path in paths]
        needed = [size] if "lr" in settings.constants else [size, rate]
        if any({run, "run"} & each or not all(is_column(need, each) for need in needed) for each in titles):
            return None
        return Claim.of(paths, "tables with batch_size, lr and no run: one row per run", COLUMNS)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield one run per row."""
        for path in table_paths(Path(source)):
            table, settings = settled(path, settings)
            unit, title = settings.axis(next((name for name in AXES if name in table.columns), "tokens"), "tokens")
            if unit == "tokens" and title in AXES:
                unit = title
            table.need(
                title,
                "how long a run was; --column tokens=THEIRS, examples=, step=, or tokens=2e9 for all; if a run has "
                "several rows, name its column with --column run=THEIRS",
            )
            for row, place in enumerate(table.places):
                name = f"{path.name}, {place}"
                yield run_of(table.rows([row]), settings, (unit, title), name=name, named=True, files=(path,))
