"""Check the rows of a table written by a person; errors say which cell cannot be used and what to do about it.

Nothing is guessed, neither the unit of a number nor the meaning of a column.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import pandas as pd

from analysis.read import cells
from analysis.read.cells import shown
from analysis.read.table import Sheet, read_table
from cbs.errors import DataError

SMALLEST, LARGEST = 1e-6, 1e15
"""Range of batch sizes, steps and learning rates: numbers beyond it are mistakes; within it products do not
overflow."""

_UNLIKE = {
    "batch_size": ("batch", "bs", "size", "batch_tokens", "tokens", "batch_examples", "global_batch_size"),
    "steps": ("step", "steps_to_target", "iterations", "iters", "updates", "examples", "tokens", "samples"),
}
"""Titles of columns that may be meant; the user has to confirm."""

_ENDS = ("status", "state", "outcome", "reached", "converged", "diverged", "failed", "finished", "success", "succeeded")
"""Titles of columns that may say which runs did not reach the target."""


def read(
    source: str | os.PathLike[str] | pd.DataFrame, columns: Mapping[str, str] | None = None
) -> tuple[str, pd.DataFrame, list[str]]:
    """Read and check a table; the arguments are as for :func:`analysis.estimate.fit_table.fit_table`.

    Returns:
        The name of the table for messages, its rows, and the columns that are not used. The rows have the columns
        :data:`REQUIRED` and :data:`OPTIONAL`, with ``None`` if the table has no such column, as well as ``place``,
        where a row stands, such as ``line 7``, and ``told``, whether a cell says if it is ``censored``. ``steps`` are
        the steps to the target or, if ``censored``, the number of steps run without reaching it (NaN if that is
        unknown). ``optimizer``, ``group`` and ``seed`` are texts as written.

    Raises:
        DataError: if a row cannot be used; the message names table, row and remedy.
        ConfigError: if ``columns`` names a title that does not exist, or an unknown column.
    """
    table = read_table(source)
    titles = table.titled(_CELLS, columns or {})
    for name in REQUIRED:
        table.need(titles[name], _remedy(name, table.columns))
    titles = {name: title for name, title in titles.items() if title in table.columns}
    unused = [title for title in table.columns if title and title not in titles.values()]
    for title in unused:
        if title.lower() in _ENDS and len({str(cell) for cell in table.columns[title]}) > 1:
            raise DataError(
                f"{table.name}: column {shown(title)} distinguishes rows, but is not used: write true in a "
                "column censored where steps is what was run without reaching the target, leave steps empty where a "
                f"run diverged, and remove {shown(title)}"
            )
    rows = pd.DataFrame([_row(table, row, titles) for row in range(len(table.places))], dtype=object)
    return table.name, rows.astype(dict.fromkeys(("batch_size", "steps", "lr", "target"), float)), unused


def _remedy(name: str, titles: Mapping[str, Any]) -> str:
    meaning = "examples per optimizer step" if name == "batch_size" else "optimizer steps to the target"
    free = [title for title in titles if title and title not in _CELLS]
    lower = {title.lower().replace(" ", "_"): title for title in free}
    near = [lower[word] for word in _UNLIKE[name] if word in lower]
    near += [lower[word] for word in get_close_matches(name, lower, n=1, cutoff=0.6)]
    if not near:
        return f"pass --column {name}=NAME for the column that holds {meaning}"
    unit = ", and --unit for what is counted" if name == "batch_size" else ""
    return f"if {shown(near[0])} holds {meaning}, pass --column {name}={shown(near[0], quote=False)}{unit}"


def _row(table: Sheet, index: int, titles: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"place": table.places[index]}
    for name, (parse, remedy) in _CELLS.items():
        row[name] = None
        if name in titles and not cells.empty(table.columns[titles[name]][index]):
            row[name] = table.cell(index, titles[name], parse)
        elif name in titles and remedy:
            raise table.error(index, titles[name], f"it is empty; {remedy}")
        elif name in titles and parse is _text:
            row[name] = ""
    censored = row["censored"] is not None
    return row | {"told": censored, "censored": bool(row["censored"]) or row["steps"] is None}


def _measured(cell: Any, hint: str = "correct or remove the row") -> float:
    value = cells.positive(cell, hint)
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"{value:g} is out of range ({SMALLEST:g} to {LARGEST:g}); correct it")
    return value


def _target(cell: Any) -> float:
    value = cells.number(cell)
    if not math.isfinite(value):
        raise ValueError(f"{shown(cell)} is not a finite number; correct or remove the row")
    return value


def _text(cell: Any) -> str:
    return " ".join(str(cell).split())


def _seed(cell: Any) -> str:
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


_CELLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "batch_size": (_measured, "every row needs a batch size"),
    "steps": (lambda cell: _measured(cell, "leave the cell empty where the target was not reached"), ""),
    "optimizer": (_text, ""),
    "group": (_text, ""),
    "seed": (_seed, "number the runs, or remove the column"),
    "lr": (_measured, ""),
    "censored": (cells.flag, ""),
    "target": (_target, "give the value that the steps lead to, or remove the column"),
    "tokens_per_example": (cells.whole, ""),
}
"""Parser for the cells of each column, and the advice for an empty cell where none is allowed."""

REQUIRED, OPTIONAL = tuple(_CELLS)[:2], tuple(_CELLS)[2:]
