"""Format ``table``: CSV, TSV or Parquet in long form, one row per measurement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from analysis.phrases import plural
from analysis.read import cells
from analysis.read.cells import shown
from analysis.read.importers.base import ANY_TABLE, IMPORTERS, Claim, Importer, Run, run_of
from analysis.read.importers.settings import AXES, Settings
from analysis.read.table import Sheet, header_of, read_table, table_paths


@IMPORTERS.register("table")
class LongTable(Importer):
    """Columns ``run``, ``step`` (or ``examples`` or ``tokens``), the metric, and any facts about the run."""

    expected = "a file that ends in .csv, .tsv or .parquet, or a folder of them"

    def claims(self, source: str) -> Claim | None:
        """Any table, or a folder with tables directly in it."""
        paths = table_paths(Path(source)) if Path(source).exists() else []
        if not paths:
            return None
        titles = ", ".join(sorted(shown(title, quote=False) for title in header_of(paths[0]) if title))
        which = "" if paths == [Path(source)] else f"{plural(len(paths), 'table')}, {paths[0].name} with "
        return Claim(why=f"{which}columns {titles}", files=frozenset(paths), certainty=ANY_TABLE)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[Run]:
        """The runs of one table, or of all tables of a folder; a run may not go on from one table to the next."""
        for path in table_paths(Path(source)):
            table = read_table(path)
            unit = next((name for name in AXES if name in table.columns), "step")
            names = pd.Series(_names(table, settings))
            for name, chosen in names.groupby(names, sort=False):
                part = table.rows(chosen.index)
                yield run_of(part, settings, settings.axis(unit, unit), name=str(name), named=True, files=(path,))


def _names(table: Sheet, settings: Settings) -> list[str]:
    title = settings.columns.get("run", "run")
    if title not in table.columns and "run" in settings.constants:
        return [settings.constants["run"]] * len(table.places)
    told = table.need(title, "rename one with --column run=THEIRS, or --set run=NAME where the table is one run")
    for row, cell in enumerate(told):
        if cells.empty(cell):
            raise table.error(row, title, "it is empty; name the run or remove the row")
    return [str(cell).strip() for cell in told]
