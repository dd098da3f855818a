"""Formats ``jsonl`` and ``csv``: the log of a training script, one file per run, one line per measurement.

Unlike a ``table`` it needs no column ``run``, and a column ``lr`` or ``seed`` in it is a measurement like any other: it
is the learning rate of that step. What is known about the run stands elsewhere: in its name, in a table of runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from analysis.read.importers.base import IMPORTERS, Claim, Importer, Run, run_of
from analysis.read.importers.files import read_text
from analysis.read.importers.settings import AXES, Settings
from analysis.read.table import Sheet, of_rows, read_table
from cbs.errors import DataError


class _Logs(Importer):
    """A file, or the files of a folder and everything below."""

    def table(self, path: Path) -> Sheet:
        """The measurements of one file."""
        raise NotImplementedError

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[Run]:
        """One run per file."""
        for path in self.files(source):
            table = self.table(path)
            unit = next((name for name in AXES if name in table.columns), "step")
            name = path.name if path == Path(source) else str(path.relative_to(source))
            aliases = (str(path), path.stem)
            yield run_of(table, settings, settings.axis(unit, unit), name=name, aliases=aliases, files=(path,))


@IMPORTERS.register("jsonl")
class JsonLines(_Logs):
    """A JSON object per line."""

    expected = "a file that ends in .jsonl, or a folder of them"
    marks = ("*.jsonl", "files of JSON lines")

    def table(self, path: Path) -> Sheet:
        rows = []
        for number, line in enumerate(read_text(path, "write it in UTF-8").splitlines(), start=1):
            try:
                row = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError):
                row = line
            if isinstance(row, dict):
                rows.append(row)
            elif row is not None:
                raise DataError(f"{path}, line {number}: it is no JSON object; write one per line, or remove the line")
        return of_rows(str(path), rows)


@IMPORTERS.register("csv")
class CsvLog(_Logs):
    """A CSV file with a header. Never found by itself: a CSV file may hold many runs, see format ``table``."""

    expected = "a file that ends in .csv, or a folder of them"
    marks = ("*.csv", "CSV files")

    def claims(self, source: str) -> Claim | None:
        """None."""
        return None

    def table(self, path: Path) -> Sheet:
        return read_table(path)
