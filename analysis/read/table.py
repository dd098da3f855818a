"""Read tables written by a person or a tool: CSV or TSV (UTF-8, header in the first line), Parquet, JSON (a list of
objects, or one per line), or in memory.

All tables are read here. A table knows where each row stands, so an error in a cell is reported with the table, the
line and the column.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.quantities import Array
from analysis.read.cells import LARGEST, empty, number, shown
from cbs.errors import ConfigError, DataError, reason
from cbs.files import memory, whole

T = TypeVar("T")

SUFFIXES = (".csv", ".tsv", ".parquet")  # Suffixes of the tables that are looked for in a folder
_JSON = (".json", ".jsonl", ".ndjson")  # Of those that are named

_CELL = 64.0  # Bytes that a cell takes at least
_INDEX = re.compile(r"__index_level_\d+__")  # Name of a column that pandas adds to Parquet files

_EMPTY = "it is empty; leave out the row if nothing was measured, write nan if the run diverged"

_TITLES = 30  # Most titles of columns in a message

_COMMA = re.compile(r" *[+-]?\d*,\d+([eE][+-]?\d+)? *")
_POINT = re.compile(r" *[+-]?\d*\.\d+([eE][+-]?\d+)? *")
_FRACTION = re.compile(r" *[+-]?(0*,\d+|\d*,(\d{1,2}|\d{4,}))([eE][+-]?\d+)? *")  # In which a comma is no separator
_MARKS = {"|": "bars", "\t": "tabs", ",": "commas", " ": "spaces"}


@dataclass(frozen=True)
class Sheet:
    """The cells of a table, unparsed.

    Attributes:
        name: name of the table for messages.
        columns: one cell per row, by title: text, or a value from Parquet, JSON or pandas; ``None`` if empty.
        places: where each row stands, such as ``line 7``.
    """

    name: str
    columns: Mapping[str, Sequence[Any]]
    places: Sequence[str] = field(repr=False)

    def need(self, title: str, remedy: str) -> Sequence[Any]:
        """Return a column; if it is missing, the error names the existing ones and ends with ``remedy``."""
        if title not in self.columns:
            raise DataError(f"{self.name} has no column {shown(title)}; it has {self.titles}; {remedy}")
        return self.columns[title]

    def known(self, titles: Collection[str]) -> None:
        """Refuse columns of any other title."""
        for title in self.columns:
            if title not in titles:
                raise DataError(f"{self.name}: unknown column {title!r}; known columns are {', '.join(titles)}")

    def titled(self, names: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
        """Return the title here of each of our ``names`` of columns: as ``renamed``, otherwise the same.

        Renaming an unknown name, or to a title that does not exist, is an error.
        """
        ours = list(names)
        for name, title in renamed.items():
            if name not in ours:
                known = ", ".join(ours)
                raise ConfigError(f"--column {name}={title}: no column {name!r} is looked for; it is one of {known}")
            if title not in self.columns:
                raise ConfigError(f"--column {name}={title}: {self.name} has no column {title!r}; it has {self.titles}")
        return {name: renamed.get(name, name) for name in ours}

    @property
    def titles(self) -> str:
        """The first titles, for a message."""
        titles = [shown(title, quote=False) for title in self.columns if title]
        more = f" and {len(titles) - _TITLES} more" if len(titles) > _TITLES else ""
        return (", ".join(titles[:_TITLES]) or "none") + more

    def error(self, row: int, title: str, words: object) -> DataError:
        """Return the error of a cell, with table, place, column and what is wrong."""
        return DataError(f"{self.name}, {self.places[row]}, column {shown(title)}: {words}")

    def cell(self, row: int, title: str, parse: Callable[[Any], T]) -> T:
        """Parse a cell with a function; the message of its ``ValueError`` is reported with the place of the cell."""
        try:
            return parse(self.columns[title][row])
        except ValueError as error:
            raise self.error(row, title, error) from None

    def filled(self, title: str) -> list[int]:
        """Return the rows in which a column is not empty; none if the table has no such column."""
        return [row for row, cell in enumerate(self.columns.get(title, ())) if not empty(cell)]

    def rows(self, chosen: Sequence[int]) -> Sheet:
        """Return some of the rows, with their places."""
        columns = {title: [cells[row] for row in chosen] for title, cells in self.columns.items()}
        return Sheet(self.name, columns, [self.places[row] for row in chosen])

    def numbers(
        self, title: str, rows: Iterable[int], *, minimum: float | None = None, where_empty: str = _EMPTY
    ) -> Array:
        """Return cells of a column as numbers, which may not be finite; with a ``minimum``, from there to
        :data:`~analysis.read.cells.LARGEST`. ``where_empty`` is the message for an empty cell."""

        def parse(cell: Any) -> float:
            try:
                value = number(cell)
            except ValueError:
                if empty(cell):
                    raise ValueError(where_empty) from None
                raise
            if minimum is not None and not minimum <= value <= LARGEST:
                words = f"a finite number of at least {minimum:g} and at most {LARGEST:g}"
                raise ValueError(f"{shown(cell)} is not {words}; correct or remove it")
            return value

        return np.array([self.cell(row, title, parse) for row in rows], dtype=float)


def read_table(source: str | os.PathLike[str] | pd.DataFrame) -> Sheet:
    """Read all cells of a file, of standard input (``-``) or of a table in memory.

    Raises:
        DataError: if the table is missing, empty, damaged, without rows, or has a column name twice; the message names
            table, line and remedy.
    """
    if isinstance(source, pd.DataFrame):
        frame = source.astype(object).where(source.notna(), None)
        columns = [(str(title), frame.iloc[:, index].tolist()) for index, title in enumerate(frame.columns)]
        return _checked("the table", columns, _places("row", len(frame)))
    if str(source) == "-":
        content = sys.stdin.buffer.read(memory() // 10)
        if sys.stdin.buffer.read(1):
            raise DataError(f"standard input is too long for the {memory() / 1e9:.3g} GB of memory of this machine")
        return _parsed("standard input", content, "")
    try:
        with open(whole(Path(source)), "rb") as file:
            content = file.read()
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {source}: {reason(error)}; pass a CSV, TSV or Parquet file") from None
    return _parsed(os.fspath(source), content, Path(source).suffix.lower())


def of_rows(name: str, rows: Sequence[Mapping[str, Any]], places: str = "entry") -> Sheet:
    """Return the table of rows given as mappings, as in JSON; missing values are empty cells."""
    titles = dict.fromkeys(title for row in rows for title in row)
    columns = {title: [row.get(title) for row in rows] for title in titles}
    return Sheet(name, columns, _places(places, len(rows)))


def _places(word: str, count: int) -> list[str]:
    return [f"{word} {index + 1}" for index in range(count)]


def table_paths(source: Path) -> list[Path]:
    """Return the tables at a path, by suffix: the file itself, or the files directly in the folder except hidden
    ones."""
    if not source.is_dir():
        return [source] if source.suffix.lower() in (*SUFFIXES, *_JSON) else []
    paths = sorted(path for path in source.iterdir() if not path.name.startswith("."))
    return [path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file()]


def header_of(path: Path) -> list[str]:
    """Return the titles of a table; none if it cannot be read, which :func:`read_table` then reports."""
    try:
        if whole(path).suffix.lower() == ".parquet":
            return list(pq.read_schema(path).names)
        if path.suffix.lower() in _JSON:
            return list(read_table(path).columns)
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
        titles = next(csv.reader([first], delimiter=_delimiter(first, path.suffix.lower())), [])
    except (OSError, ValueError, csv.Error, pa.ArrowException, DataError):
        return []
    return [title.strip() for title in titles]


def _parsed(name: str, content: bytes, suffix: str) -> Sheet:
    if content.startswith(b"PAR1") or suffix in (".parquet", ".pq"):
        try:
            file = pq.ParquetFile(io.BytesIO(content))
            size = file.metadata.num_rows * file.metadata.num_columns
            if _CELL * size > memory():
                raise DataError(f"{name} has {size:.3g} cells, more than fit in the memory of this machine")
            table = file.read()
            columns = [(title, table[index].to_pylist()) for index, title in enumerate(table.column_names)]
        except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError):
            raise DataError(f"cannot read {name}: it is not a Parquet file; write it again, or pass a CSV") from None
        kept = [(title, cells) for title, cells in columns if not _INDEX.fullmatch(title)]
        return _checked(name, kept, _places("row", table.num_rows))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{name}, line {line}: not UTF-8 text; save the table as CSV in UTF-8") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(f"{name}, line {line}: holds binary data; save the table as CSV in UTF-8")
    if not text.strip() and suffix not in _JSON:  # a log of JSON lines has no header, and may not have begun
        raise DataError(f"{name} is empty; it needs a header line with the names of the columns, and rows")
    if suffix in _JSON or re.match(r"\s*(\{|\[\s*[\[{])", text):
        return _from_json(name, text)
    delimiter = _delimiter(text.lstrip("\r\n").splitlines()[0], suffix)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    if text.count('"') % 2:
        line = text[: text.rindex('"')].count("\n") + 1
        raise DataError(f"{name}: a quote is not closed, the last in line {line}; is the file cut off? copy it again")
    lines: dict[str, list[str]] = {}
    end = 0
    try:
        for cells in reader:
            start, end = end + 1, reader.line_num
            if any(cell.strip() for cell in cells):
                lines[f"line {start}"] = cells
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: not CSV ({error}); save the table again") from None
    header = lines.pop(next(iter(lines), ""), [])
    _check(name, header)
    for place, cells in lines.items():
        if len(cells) != len(header):
            raise DataError(
                f"{name}, {place}: {len(cells)} cells where the header has {len(header)}; separate cells by a comma "
                "(or a tab throughout), write numbers without commas, and copy a file that is cut off again"
            )
    rows = _with_points(lines.values()) if delimiter != "," else lines.values()
    return _checked(name, list(zip(header, zip(*rows, strict=True), strict=bool(lines))), list(lines))


def _from_json(name: str, text: str) -> Sheet:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(rows := json.loads(text), list) and rows and all(isinstance(row, dict) for row in rows):
            return of_rows(name, [dict(_levels(row)) for row in rows])
    rows = []
    # not splitlines: JSON texts may contain other line separators, such as U+2028
    for at, line in enumerate(text.split("\n"), start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            row = line
        if isinstance(row, dict):
            rows.append(dict(_levels(row)))
        elif row is not None:
            raise DataError(f"{name}, line {at}: not a JSON object; write one per line, or remove the line")
    return of_rows(name, rows)


def _levels(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of an object and of those in it, by keys that are joined as Ray does it."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{key}/{name}", each) for name, each in _levels(value))
        else:
            yield key, value


def _delimiter(first: str, suffix: str) -> str:
    if suffix in (".tsv", ".tab") or ("\t" in first and "," not in first):
        return "\t"
    return ";" if ";" in first and "," not in first else ","


def _with_points(rows: Collection[list[str]]) -> list[list[str]]:
    """Return rows with decimal points in place of commas, as spreadsheets write them beside semicolons and tabs, unless
    a point, or no comma that cannot stand between thousands, leaves it open what a comma is."""
    texts = {cell for row in rows for cell in row if _COMMA.fullmatch(cell) or _POINT.fullmatch(cell)}
    sure = any(_FRACTION.fullmatch(text) for text in texts) and not any("." in text for text in texts)
    return [[cell.replace(",", ".") if sure and cell in texts else cell for cell in row] for row in rows]


def _checked(name: str, columns: Sequence[tuple[str, Sequence[Any]]], places: Sequence[str]) -> Sheet:
    _check(name, [title for title, _ in columns])
    if not places:
        raise DataError(f"{name} has a header and no rows below it; add rows, or export it again")
    return Sheet(name, {title.strip(): cells for title, cells in columns}, places)


def _check(name: str, header: Sequence[str]) -> None:
    titles = [title.strip() for title in header]
    words = next((words for mark, words in _MARKS.items() if len(titles) == 1 and mark in titles[0]), None)
    if words is not None:
        raise DataError(
            f"{name}, line 1: columns seem to be separated by {words}; save with commas (.csv) or tabs (.tsv)"
        )
    twice = next((title for title in titles if title and titles.count(title) > 1), None)
    if twice is not None:
        raise DataError(f"{name}, line 1: two columns are called {shown(twice)}; rename one")
