"""Format ``table``: CSV, TSV or Parquet in long form, one row per measurement."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from analysis.read.importers import cells
from analysis.read.importers.base import AXES, FACTS, IMPORTERS, Found, Request, Run
from analysis.read.importers.files import Sheet, read_sheet, table_paths
from cbs.errors import DataError

_REPEATED = "a run has one; tell the runs apart in the column 'run', or correct the cell"


@IMPORTERS.register("table")
class Table:
    """Columns ``run``, ``step`` (or ``examples`` or ``tokens``), the metric, and any facts about the run."""

    def claims(self, source: str) -> bool:
        """A table that is not of Weights & Biases, or a folder with tables directly in it."""
        paths = table_paths(Path(source)) if Path(source).exists() else []
        return bool(paths) and not IMPORTERS["wandb"]().claims(source)

    def read(self, source: str, request: Request) -> Found:
        """The runs of one table, or of all tables of a folder; a run may not go on from one table to the next."""
        paths = table_paths(Path(source))
        if not paths:
            raise DataError(
                f"no table at {source}: expected a file, or a folder of files, that end in .csv, .tsv or .parquet"
            )
        sheets = [read_sheet(path) for path in paths]
        return Found(
            runs=[run for sheet in sheets for run in runs_of(sheet, request)],
            metrics=sorted({name for sheet in sheets for name in sheet.columns}),
            files=paths,
        )


def runs_of(sheet: Sheet, request: Request) -> list[Run]:
    """The runs of a table in long form.

    Raises:
        DataError: naming file, row or run, if a column is missing or a cell is not what it must be.
    """
    unit = next((name for name in AXES if name in request.columns), None) or next(
        (name for name in AXES if name in sheet.columns), "step"
    )
    names = _names(sheet, request)
    for column, flag in ((request.metric, "--metric"), (request.column(unit), f"--column {unit}=THEIRS")):
        if column not in sheet.columns:
            raise DataError(f"{sheet.path} has no column {column!r}; it has {', '.join(sheet.columns)}; see {flag}")
    axis = sheet.numbers(request.column(unit), minimum=0.0)
    values = sheet.numbers(request.metric)
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    return [
        Run(
            name=name,
            place=str(sheet.path),
            axis=axis[np.array(members)],
            values=values[np.array(members)],
            unit=unit,
            facts=_facts(sheet, request, name, members),
        )
        for name, members in rows.items()
    ]


def _names(sheet: Sheet, request: Request) -> list[str]:
    column = request.column("run")
    if column not in sheet.columns:
        if "run" in request.constants:
            return [request.constants["run"]] * len(sheet.lines)
        raise DataError(
            f"{sheet.path} has no column {column!r}; it has {', '.join(sheet.columns)}; rename one with --column "
            "run=THEIRS, or --set run=NAME where the table is one run"
        )
    for cell, line in zip(sheet.columns[column], sheet.lines, strict=True):
        if cells.empty(cell):
            raise DataError(f"{sheet.path}, {line}: column {column!r} is empty; name the run or remove the row")
    return [str(cell).strip() for cell in sheet.columns[column]]


def _facts(sheet: Sheet, request: Request, name: str, members: list[int]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for fact in FACTS:
        column = request.column(fact)
        if column not in sheet.columns:
            if fact in request.columns and not column.startswith("config."):
                raise DataError(f"{sheet.path} has no column {column!r}; it has {', '.join(sheet.columns)}")
            continue
        told = [sheet.columns[column][row] for row in members]
        for cell in _distinct(told):
            line = sheet.lines[members[told.index(cell)]]
            try:
                value = cells.fact(fact, cell)
            except ValueError as error:
                raise DataError(f"{sheet.path}, {line}, column {column!r}: {error}; correct the cell") from None
            if value != facts.setdefault(fact, value):
                raise DataError(
                    f"{sheet.path}, {line}: run {name} has the {fact} {facts[fact]} and {value}; {_REPEATED}"
                )
    return facts


def _distinct(told: list[Any]) -> list[Any]:
    """What a column says of a run, each thing once, empty cells left out; cells of Parquet may be lists."""
    with contextlib.suppress(TypeError):
        told = list(dict.fromkeys(told))
    return [cell for cell in told if not cells.empty(cell)]
