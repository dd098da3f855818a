"""The cells of a table that a person wrote: CSV or TSV (UTF-8, header in the first line), Parquet, or one in memory."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet

from cbs.errors import DataError

_NEEDS = "it needs a header line with the columns batch_size and steps"


@dataclass(frozen=True)
class Cells:
    """Raw cells.

    Attributes:
        name: what to call the table in a message.
        columns: title -> cells: text, or what Parquet or pandas hold.
        places: where each row stands, such as ``line 7``.
    """

    name: str
    columns: dict[str, list[Any]]
    places: list[str]


def read_cells(source: str | os.PathLike[str] | pd.DataFrame) -> Cells:
    """All cells of a file, of standard input (``-``) or of a table in memory.

    Raises:
        DataError: naming table, line and remedy.
    """
    if isinstance(source, pd.DataFrame):
        return _from_frame("the table", source)
    if str(source) == "-":
        return _from_bytes("standard input", sys.stdin.buffer.read(), "")
    path = Path(source)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read the table {path}: {why}; pass a CSV, TSV or Parquet file, or - to pipe") from None
    return _from_bytes(str(path), content, path.suffix.lower())


def _from_bytes(name: str, content: bytes, suffix: str) -> Cells:
    if not content.strip():
        raise DataError(f"{name} is empty; {_NEEDS}")
    if content.startswith(b"PAR1") or suffix in (".parquet", ".pq"):
        try:
            return _from_frame(name, pyarrow.parquet.read_table(io.BytesIO(content)).to_pandas())
        except (pyarrow.ArrowException, OSError, ValueError, TypeError, OverflowError):
            raise DataError(f"{name} is not a Parquet file that can be read; write it again, or pass a CSV") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{name}, line {line}: not UTF-8 text; save the table as CSV in UTF-8") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(f"{name}, line {line}: holds binary data; save the table as CSV in UTF-8")
    return _from_text(name, text, suffix)


def _from_text(name: str, text: str, suffix: str) -> Cells:
    first = text.lstrip("\r\n").splitlines()[0]
    tabs = suffix in (".tsv", ".tab") or ("\t" in first and "," not in first)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if tabs else ",")
    header: list[str] = []
    lines: list[list[str]] = []
    places: list[str] = []
    end = 0
    try:
        for cells in reader:
            start, end = end + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                _check_header(name, header)
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{name}, line {start}: {len(cells)} cells where the header has {len(header)}; "
                    "separate cells by a comma (or a tab throughout) and write numbers without commas"
                )
            lines.append(cells)
            places.append(f"line {start}")
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: not CSV ({error}); save the table again") from None
    if not header:
        raise DataError(f"{name} is empty; {_NEEDS}")
    columns = {title: [line[index] for line in lines] for index, title in enumerate(header)}
    return Cells(name, columns, places)


def _check_header(name: str, header: Sequence[str]) -> None:
    if len(header) == 1:
        for mark, words in ((";", "semicolons"), ("|", "bars"), ("\t", "tabs"), (",", "commas"), (" ", "spaces")):
            if mark in header[0]:
                raise DataError(
                    f"{name}, line 1: columns seem to be separated by {words}; save with commas (.csv) or tabs (.tsv)"
                )
    twice = next((title for title in header if title and header.count(title) > 1), None)
    if twice is not None:
        raise DataError(f"{name}, line 1: two columns are called {shown(twice)}; rename one")


def _from_frame(name: str, frame: pd.DataFrame) -> Cells:
    titles = [str(title).strip() for title in frame.columns]
    _check_header(name, titles)
    columns = {title: frame.iloc[:, index].tolist() for index, title in enumerate(titles)}
    return Cells(name, columns, [f"row {index + 1}" for index in range(len(frame))])


def shown(text: str, *, quote: bool = True) -> str:
    """Text from a table as it may stand in one line of a message."""
    cut = text if len(text) <= 40 else f"{text[:37]}..."
    return repr(cut) if quote or not cut.isprintable() else cut
