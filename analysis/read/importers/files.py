"""Reading the files of a source: every failure is one line with the file in it."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.arrays import Array
from analysis.read.importers import cells
from cbs.errors import DataError, reason

SUFFIXES = {".csv": ",", ".tsv": "\t", ".parquet": ""}
"""Tables by their suffix, with the delimiter of those that are text."""


@dataclass(frozen=True)
class Sheet:
    """A table: columns of cells as they stand.

    Attributes:
        path: the file.
        columns: name -> one cell per row; text, or what Parquet holds.
        lines: where each row is, in words.
    """

    path: Path
    columns: dict[str, Sequence[Any]]
    lines: Sequence[str] = field(repr=False)

    def filled(self, name: str) -> list[int]:
        """Rows in which a column is not empty."""
        return [row for row, cell in enumerate(self.columns[name]) if not cells.empty(cell)]

    def numbers(self, name: str, *, rows: Sequence[int] | None = None, minimum: float | None = None) -> Array:
        """A column as numbers, not finite in general.

        Args:
            name: of the column.
            rows: which; ``None`` for all.
            minimum: the least they may be; then they have to be finite, too.

        Raises:
            DataError: naming file, row and column.
        """
        chosen = range(len(self.lines)) if rows is None else rows
        told = [self.columns[name][row] for row in chosen]
        plain = cells.plain_numbers(told)
        if plain is not None and (minimum is None or ((plain >= minimum) & (plain < np.inf)).all()):
            return plain
        values = np.empty(len(chosen))
        for index, row in enumerate(chosen):
            cell = told[index]
            if cells.empty(cell):
                raise DataError(
                    f"{self.path}, {self.lines[row]}: column {name!r} is empty; leave the row out where nothing was "
                    "measured, write nan where the run diverged"
                )
            try:
                values[index] = cells.number(cell)
            except ValueError as error:
                raise DataError(f"{self.path}, {self.lines[row]}, column {name!r}: {error}; correct the cell") from None
            if minimum is not None and not minimum <= values[index] < np.inf:
                raise DataError(
                    f"{self.path}, {self.lines[row]}, column {name!r}: {cell} is not a number of at least {minimum:g}; "
                    "correct or remove the row"
                )
        return values


def table_paths(source: Path) -> list[Path]:
    """The tables at a path: the file itself, or those directly in the folder."""
    if source.is_dir():
        return [path for path in entries(source) if path.suffix.lower() in SUFFIXES and path.is_file()]
    return [source] if source.suffix.lower() in SUFFIXES else []


def header_of(path: Path) -> list[str]:
    """The columns of a table; none where it cannot be read, which :func:`read_sheet` then explains."""
    try:
        if path.suffix.lower() == ".parquet":
            return list(pq.read_schema(path).names)
        with open(path, encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file, delimiter=SUFFIXES[path.suffix.lower()]), [])
    except (OSError, ValueError, csv.Error, pa.ArrowException):
        return []


def read_sheet(path: Path) -> Sheet:
    """Read a table.

    Raises:
        DataError: if it is missing, empty, damaged, without rows, or has a column twice.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path} is not a table: its name must end in {', '.join(SUFFIXES)}")
    header, columns, lines = _parquet(path) if suffix == ".parquet" else _text(path, SUFFIXES[suffix])
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path} has the column {twice[0]!r} twice; rename one of them")
    if not lines:
        raise DataError(f"{path} has no rows below its header; export it again")
    return Sheet(path, dict(zip(header, columns, strict=True)), lines)


def _text(path: Path, delimiter: str) -> tuple[list[str], list[Sequence[Any]], list[str]]:
    rows, lines = [], []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(f"line {reader.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {_why(error)}; export it again as UTF-8 text") from None
    if not rows:
        raise DataError(f"{path} is empty; export it again")
    header = [name.strip() for name in rows[0]]
    if len(header) == 1 and any(mark in header[0] for mark in ",;\t"):
        raise DataError(f"{path} has one column, {header[0]!r}: its delimiter is not that of {path.suffix}; export it "
                        "with commas as .csv or with tabs as .tsv")  # fmt: skip
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if len(row) != len(header):
            raise DataError(
                f"{path}, {line}: {len(row)} cells where the header has {len(header)}; the file is cut off or damaged, "
                "export it again"
            )
    return header, list(zip(*rows[1:], strict=True)) or [() for _ in header], lines[1:]


def _parquet(path: Path) -> tuple[list[str], list[Sequence[Any]], list[str]]:
    try:
        table = pq.ParquetFile(path).read()
        columns: list[Sequence[Any]] = [column.to_pylist() for column in table.columns]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {_why(error)}; export it again") from None
    return list(table.column_names), columns, [f"row {row + 1}" for row in range(table.num_rows)]


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataError: if it is missing, unreadable or no JSON object; ends with ``remedy``.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"cannot read {path}: {_why(error)}; {remedy}") from None
    if not isinstance(data, dict):
        raise DataError(f"cannot read {path}: not a JSON object; {remedy}")
    return data


def entries(folder: Path) -> list[Path]:
    """What is in a folder, sorted, hidden entries left out.

    Raises:
        DataError: if it cannot be listed.
    """
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot list {folder}: {_why(error)}; check its permissions") from None


def digest(paths: Sequence[Path]) -> str | None:
    """SHA-256 of one file, as ``sha256sum`` prints it; of several, that of what ``sha256sum`` prints for all of them.

    ``None`` for no file.

    Raises:
        DataError: if one cannot be read.
    """
    sums = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                sums.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path}\n")
        except OSError as error:
            raise DataError(f"cannot read {path}: {_why(error)}; check its permissions") from None
    if len(sums) == 1:
        return sums[0].split()[0]
    return hashlib.sha256("".join(sums).encode("utf-8", "surrogateescape")).hexdigest() if sums else None


def _why(error: BaseException) -> str:
    return (error.strerror or reason(error)) if isinstance(error, OSError) else reason(error)
