"""One description of a table, from which the terminal, CSV, LaTeX and HTML are made.

A description is columns over rows; a row is whatever a question found (an answer, a plan, a law, a mapping), and a
column knows how to read its value and its interval from a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis.present.numbers import DASH, ends, number

Reader = str | Callable[[Any], Any] | None
"""What reads a value: a function of the row; a dotted path of attributes and of keys of mappings, which gives ``None``
where something on the way is ``None``; or ``None`` for the key of the column."""


def text_of(value: Any) -> str:
    """A value as a person reads it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else number(value)


@dataclass(frozen=True)
class Column:
    """One quantity.

    Attributes:
        key: name in CSV, with the unit where it has one; empty for a column that people alone see.
        value: what reads it from a row.
        heading: for people; empty for a column that files alone hold.
        interval: what reads its interval ``(low, high)``; ``None`` for a quantity without.
        latex: heading in LaTeX; the escaped ``heading`` when empty.
        text: value -> what people see.
        ends: names of the ends of the interval in CSV; ``key_low`` and ``key_high`` when empty.
        left: whether it is text, aligned left and broken between words, not a number, which is never broken.
        name: whether it names the row; stands in every block of a table too wide for the screen. Implies ``left``.
        wide: whether it is shown only where everything is asked for.
    """

    key: str
    value: Reader = None
    heading: str = ""
    interval: Reader = None
    latex: str = ""
    text: Callable[[Any], str] = text_of
    ends: tuple[str, str] | None = None
    left: bool = False
    name: bool = False
    wide: bool = False

    def read(self, row: Any) -> Any:
        """Its value in a row."""
        return _read(row, self.key if self.value is None else self.value)

    def cell(self, row: Any) -> tuple[str, str]:
        """Its value and its interval in a row as texts; the interval is empty where there is none."""
        interval = None if self.interval is None else _read(row, self.interval)
        return self.text(self.read(row)), "" if interval is None else ends(interval)

    def entries(self, row: Any) -> dict[str, Any]:
        """Its values in a row by their names in CSV."""
        found = {self.key: self.read(row)}
        if self.interval is not None:
            names = self.ends or (f"{self.key}_low", f"{self.key}_high")
            found |= dict(zip(names, _read(row, self.interval) or (None, None), strict=True))
        return found

    @property
    def names(self) -> list[str]:
        """Its names in CSV."""
        return [self.key, *([] if self.interval is None else self.ends or (f"{self.key}_low", f"{self.key}_high"))]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns over rows.

    Attributes:
        columns, rows: see the head of this module.
        title: one line above it.
        lines: sentences below it.
        asked: option that has to be asked for before it is shown, such as ``definitions``; empty for always.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Any]
    title: str = ""
    lines: Sequence[str] = ()
    asked: str = ""

    def shown(self, *, wide: bool = False) -> Table:
        """The same with the columns that people see."""
        return replace(self, columns=tuple(c for c in self.columns if c.heading and (wide or not c.wide)))

    def cells(self) -> list[list[tuple[str, str]]]:
        """Value and interval of every cell as texts, see :meth:`Column.cell`."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def frame(self) -> pd.DataFrame:
        """The columns that files hold."""
        kept = [column for column in self.columns if column.key]
        names = [name for column in kept for name in column.names]
        return pd.DataFrame(
            [{k: v for column in kept for k, v in column.entries(row).items()} for row in self.rows], columns=names
        )


def pivot(rows: Sequence[Mapping[str, Any]], down: Column, across: str, value: str, interval: str = "") -> Table:
    """A table of mappings with one column for every value of ``across`` and one row for every value of ``down``."""
    found: dict[Any, dict[Any, Any]] = {}
    for row in rows:
        found.setdefault(down.read(row), {"": row})[row[across]] = row
    columns = [replace(down, value=lambda row: down.read(row[""]), name=True)]
    for title in dict.fromkeys(row[across] for row in rows):

        def read(row: Any, key: str = value, title: Any = title) -> Any:
            return row[title][key] if title in row else None

        ends_of = None if not interval else lambda row, read=read: read(row, interval)
        columns.append(Column("", read, text_of(title), ends_of))
    return Table(columns=tuple(columns), rows=list(found.values()))


def _read(row: Any, reader: Reader) -> Any:
    if callable(reader):
        return reader(row)
    for part in (reader or "").split("."):
        if row is not None:
            row = row.get(part) if isinstance(row, Mapping) else getattr(row, part)
    return row
