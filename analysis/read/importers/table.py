"""Format ``table``: CSV, TSV or Parquet in long form, one row per measurement."""

from __future__ import annotations

from pathlib import Path

from analysis.read import cells
from analysis.read.cells import shown
from analysis.read.importers.base import ANY_TABLE, AXES, IMPORTERS, Claim, Found, Request, Run
from analysis.read.importers.runs import run_of
from analysis.read.table import Table, header_of, read_table, table_paths
from cbs.errors import DataError


@IMPORTERS.register("table")
class LongTable:
    """Columns ``run``, ``step`` (or ``examples`` or ``tokens``), the metric, and any facts about the run."""

    def claims(self, source: str) -> Claim | None:
        """Any table, or a folder with tables directly in it."""
        paths = table_paths(Path(source)) if Path(source).exists() else []
        titles = ", ".join(sorted(shown(title, quote=False) for title in header_of(paths[0]) if title)) if paths else ""
        why = f"{paths[0].name} with the columns {titles or '(none)'}" if paths else ""
        return Claim(why=why, files=frozenset(paths), certainty=ANY_TABLE) if paths else None

    def read(self, source: str, request: Request) -> Found:
        """The runs of one table, or of all tables of a folder; a run may not go on from one table to the next."""
        paths = table_paths(Path(source))
        if not paths:
            raise DataError(
                f"no table at {source}: expected a file, or a folder of files, that end in .csv, .tsv or .parquet"
            )
        tables = [read_table(path) for path in paths]
        return Found(
            runs=[run for table in tables for run in _runs(table, request)],
            metrics=sorted({title for table in tables for title in table.columns}),
            files=paths,
        )


def _runs(table: Table, request: Request) -> list[Run]:
    unit = next((name for name in AXES if name in table.columns), "step")
    axis = request.axis(unit, unit)
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(_names(table, request)):
        rows.setdefault(name, []).append(row)
    return [run_of(table.rows(chosen), request, axis, name=name, named=True) for name, chosen in rows.items()]


def _names(table: Table, request: Request) -> list[str]:
    title = request.columns.get("run", "run")
    if title not in table.columns and "run" in request.constants:
        return [request.constants["run"]] * len(table.places)
    told = table.need(title, "rename one with --column run=THEIRS, or --set run=NAME where the table is one run")
    for row, cell in enumerate(told):
        if cells.empty(cell):
            raise table.error(row, title, "it is empty; name the run or remove the row")
    return [str(cell).strip() for cell in told]
