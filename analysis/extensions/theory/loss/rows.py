"""Read and check a table, written by a person, of runs with their sizes and losses."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimate.forms import LossRuns
from analysis.phrases import plural
from analysis.read import cells
from analysis.read.cells import shown
from analysis.read.table import Sheet, read_table
from cbs.errors import DataError

_MEANING = {
    "N": "parameters of the model",
    "B": "examples or tokens per optimizer step",
    "K": "optimizer steps of the run",
    "loss": "loss at its end",
}
_OPTIONAL = ("lr", "run")
_LEAST = {"N": 10.0, "B": 1e-6, "K": 1.0}
_MOST = 1e18


def read(
    source: str | os.PathLike[str] | pd.DataFrame, columns: Mapping[str, str] | None = None
) -> tuple[str, LossRuns, list[str]]:
    """Read and check a table.

    Args:
        source: a file, ``-`` for standard input, or a table in memory, with columns ``N``, ``B``, ``K`` and ``loss``
            and, optionally, ``lr`` and ``run``.
        columns: titles of columns in the table, by the names used here, where they differ.

    Returns:
        The name of the table for messages, the runs, and notes on what was done to them. Without a column ``run``, rows
        with the same N and B may have been read from one run, and form a group. With a column ``lr``, the rows with the
        best learning rate are kept for each N, B and K. Rows without a finite loss are left out.

    Raises:
        DataError: if a row cannot be used; the message names table, row and remedy.
        ConfigError: if ``columns`` names a title that does not exist, or an unknown column.
    """
    table = read_table(source)
    titles = table.titled((*_MEANING, *_OPTIONAL), columns or {})
    for name, meaning in _MEANING.items():
        table.need(titles[name], f"pass --column {name}=NAME for the column that holds {meaning}")
    rows = pd.DataFrame(
        {name: [_cell(table, row, titles[name], name) for row in range(len(table.places))] for name in titles
         if titles[name] in table.columns}
    )  # fmt: skip
    notes = []
    lost = ~np.isfinite(rows["loss"])
    if lost.any():
        notes.append(
            f"{plural(int(lost.sum()), 'row')} without a finite loss left out: the forms are of runs that converge"
        )
        rows = rows[~lost]
    if not len(rows):
        raise DataError(f"{table.name}: no row has a finite loss; add runs that did not diverge")
    if "lr" in rows:
        before = len(rows)
        mean = np.log(rows["loss"]).groupby([rows[name] for name in ("N", "B", "K", "lr")]).transform("mean")
        rows = rows[mean == mean.groupby([rows[name] for name in ("N", "B", "K")]).transform("min")]
        if len(rows) < before:
            notes.append(
                f"of several learning rates the one with the lowest mean loss is kept: {len(rows)} of {before} rows"
            )
    by = ["run"] if "run" in rows else ["N", "B"]
    group = rows.groupby(by, sort=False).ngroup().to_numpy()
    if "run" not in rows and len(np.unique(group)) < len(rows):
        notes.append(
            "rows of one N and B are assumed to come from one run, whose errors are dependent; "
            "add a column run where they do not"
        )
    n, b, k, loss = (rows[name].to_numpy(dtype=float) for name in _MEANING)
    return table.name, LossRuns(parameters=n, batch_size=b, steps=k, loss=loss, group=group), notes


def _cell(table: Sheet, row: int, title: str, name: str) -> Any:
    def parse(cell: Any) -> Any:
        if cells.empty(cell):
            raise ValueError(
                f"it is empty; every row needs {name}" if name != "loss" else "it is empty; write nan where it diverged"
            )
        if name == "run":
            return str(cell).strip()
        if name == "loss":
            value = cells.number(cell)
            if math.isfinite(value) and not 0.0 < value < _MOST:
                raise ValueError(
                    f"{shown(cell)} is not a loss above 0; the forms are fitted to the logarithm of the loss"
                )
            return value
        value = cells.positive(cell)
        if not _LEAST.get(name, 0.0) <= value <= _MOST:
            raise ValueError(f"{value:g} is not between {_LEAST.get(name, 0.0):g} and {_MOST:g}; correct it")
        return value

    return table.cell(row, title, parse)
