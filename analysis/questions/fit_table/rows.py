"""The rows of a table that a person wrote, checked: where a cell that cannot be used stands, and what to do about it.

Nothing is guessed: neither the unit of a number nor which column is meant.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Real
from typing import Any

import pandas as pd

from analysis.read.table import Cells, read_cells, shown
from cbs.errors import ConfigError, DataError

REQUIRED = ("batch_size", "steps")
OPTIONAL = ("optimizer", "group", "seed", "lr", "censored", "target", "tokens_per_example")

SMALLEST, LARGEST = 1e-6, 1e15
"""Of a batch size, steps or a learning rate: beyond these a number is a slip, and products of two overflow nothing."""

_SUFFIXED = re.compile(r"[\d.]+\s*[kmgbt]i?b?", re.IGNORECASE)
_WORDS = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}
_UNLIKE = {
    "batch_size": ("batch", "bs", "size", "batch_tokens", "tokens", "batch_examples", "global_batch_size"),
    "steps": ("step", "steps_to_target", "iterations", "iters", "updates", "examples", "tokens", "samples"),
}
"""What a column is called that may be meant; whether it is, a person has to say."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table.

    Attributes:
        place: where it stands, such as ``line 7``.
        batch_size: examples per step.
        steps: optimizer updates to the target, or the most that were run without reaching it; ``None`` where only that
            it was not reached is known.
        censored: whether the target was not reached.
        optimizer, group, seed: as written; ``None`` without such a column.
        lr, target, tokens_per_example: ``None`` without such a column.
    """

    place: str
    batch_size: float
    steps: float | None
    censored: bool
    optimizer: str | None = None
    group: str | None = None
    seed: str | None = None
    lr: float | None = None
    target: float | None = None
    tokens_per_example: int | None = None


def read(
    source: str | os.PathLike[str] | pd.DataFrame, columns: Mapping[str, str] | None = None
) -> tuple[str, list[Row], list[str]]:
    """Read and check a table.

    Args:
        source: a file, ``-`` for standard input, or a table in memory.
        columns: our name of a column -> what it is called in the table, where that differs.

    Returns:
        What to call the table in a message, its rows, and the columns that are not used.

    Raises:
        DataError: naming table, row and remedy.
        ConfigError: if ``columns`` names one that is not there, or is not one of ours.
    """
    cells = read_cells(source)
    cells, unused = _chosen(cells, columns or {})
    if not cells.places:
        raise DataError(f"{cells.name} has a header and no rows; add one row per batch size")
    return cells.name, list(_rows(cells)), unused


def _chosen(cells: Cells, renamed: Mapping[str, str]) -> tuple[Cells, list[str]]:
    """The cells under our names, and the columns nobody asked for."""
    ours = (*REQUIRED, *OPTIONAL)
    has = ", ".join(shown(title, quote=False) for title in cells.columns if title)
    for name, title in renamed.items():
        if name not in ours:
            raise ConfigError(
                f"--column {name}={title}: no column {name!r} is looked for; it is one of {', '.join(ours)}"
            )
        if title not in cells.columns:
            raise ConfigError(f"--column {name}={title}: {cells.name} has no column {title!r}; it has {has}")
    titles = {name: renamed.get(name, name) for name in ours}
    for name in REQUIRED:
        if titles[name] not in cells.columns:
            raise DataError(f"{cells.name} has no column {name!r}; it has {has}. {_remedy(name, cells.columns)}")
    used = {name: title for name, title in titles.items() if title in cells.columns}
    unused = [title for title in cells.columns if title and title not in used.values()]
    return Cells(cells.name, {name: cells.columns[title] for name, title in used.items()}, cells.places), unused


def _remedy(name: str, titles: Mapping[str, Any]) -> str:
    meaning = "examples per optimizer step" if name == "batch_size" else "optimizer steps to the target"
    free = [title for title in titles if title and title not in (*REQUIRED, *OPTIONAL)]
    lower = {title.lower().replace(" ", "_"): title for title in free}
    near = [lower[word] for word in _UNLIKE[name] if word in lower]
    near += [lower[word] for word in get_close_matches(name, lower, n=1, cutoff=0.6)]
    if not near:
        return f"Pass --column {name}=NAME for the column that holds {meaning}"
    unit = ", and --unit for what is counted" if name == "batch_size" else ""
    return f"If {shown(near[0])} holds {meaning}, pass --column {name}={shown(near[0], quote=False)}{unit}"


def _rows(cells: Cells) -> Iterator[Row]:
    by_name = cells.columns
    for index, place in enumerate(cells.places):
        where = f"{cells.name}, {place}"
        raw = {name: values[index] for name, values in by_name.items()}
        size = _number(raw["batch_size"], where, "batch_size")
        if size is None:
            raise DataError(f"{where}: batch_size is empty; every row needs one")
        _check(size, where, "batch_size")
        steps = _number(raw["steps"], where, "steps")
        if steps is not None:
            _check(steps, where, "steps")
        lr = _number(raw.get("lr"), where, "lr")
        if lr is not None:
            _check(lr, where, "lr")
        target = _number(raw.get("target"), where, "target")
        if target is None and "target" in by_name:
            raise DataError(f"{where}: target is empty; give the value that the steps lead to, or remove the column")
        yield Row(
            place=place,
            batch_size=size,
            steps=steps,
            censored=_flag(raw.get("censored"), where) or steps is None,
            optimizer=_text(raw, "optimizer"),
            group=_text(raw, "group"),
            seed=_seed(raw, where),
            lr=lr,
            target=target,
            tokens_per_example=_tokens(raw, where),
        )


def _number(cell: Any, where: str, column: str) -> float | None:
    """A finite number, or ``None`` for an empty cell."""
    if _is_empty(cell):
        return None
    text = str(cell).strip()
    try:
        value = float(text if not isinstance(cell, Real) else cell)
        if isinstance(cell, bool):
            raise ValueError
    except (ValueError, OverflowError):
        hint = "write a plain number"
        if _SUFFIXED.fullmatch(text):
            hint = "write the number in full, without a suffix"
        elif "," in text:
            hint = "write it without thousands separators, and with a decimal point"
        raise DataError(f"{where}: {column} {shown(text)} is not a number; {hint}") from None
    if not math.isfinite(value):
        left = "; leave the cell empty where the target was not reached" if column == "steps" else ""
        raise DataError(f"{where}: {column} {shown(text)} is not a finite number{left}")
    return value


def _is_empty(cell: Any) -> bool:
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or cell is pd.NA or cell is pd.NaT or (isinstance(cell, float) and math.isnan(cell))


def _check(value: float, where: str, column: str) -> None:
    if value <= 0:
        left = "; leave the cell empty where the target was not reached" if column == "steps" else ""
        raise DataError(f"{where}: {column} is {value:g}, it must be above 0{left}")
    if not SMALLEST <= value <= LARGEST:
        raise DataError(
            f"{where}: {column} is {value:g}, beyond anything that can be meant ({SMALLEST:g} to {LARGEST:g})"
        )


def _flag(cell: Any, where: str) -> bool:
    if _is_empty(cell):
        return False
    found = _WORDS.get(str(cell).strip().lower())
    if found is None:
        raise DataError(f"{where}: censored is {shown(str(cell))}; write true or false")
    return found


def _text(raw: Mapping[str, Any], column: str) -> str | None:
    if column not in raw:
        return None
    return "" if _is_empty(raw[column]) else " ".join(str(raw[column]).split())


def _seed(raw: Mapping[str, Any], where: str) -> str | None:
    if "seed" not in raw:
        return None
    if _is_empty(raw["seed"]):
        raise DataError(f"{where}: seed is empty; number the runs, or remove the column")
    cell = raw["seed"]
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def _tokens(raw: Mapping[str, Any], where: str) -> int | None:
    value = _number(raw.get("tokens_per_example"), where, "tokens_per_example")
    if value is None:
        return None
    if value < 1 or value != int(value):
        raise DataError(f"{where}: tokens_per_example is {value:g}; it must be a whole number above 0")
    return int(value)
