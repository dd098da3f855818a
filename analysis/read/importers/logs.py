"""Logs with one run per file: formats ``jsonl`` and ``csv``.

The log of a training script needs no column ``run``, and a column ``lr`` or ``seed`` in it is a measurement like any
other: the learning rate of that step. Facts about its run come from elsewhere: its name, or a table of runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.read.importers.base import ImportedRun, Importer, run_of
from analysis.read.importers.settings import AXES, Settings
from analysis.read.table import Sheet, read_table


def on_any_axis(table: Sheet, settings: Settings, **about: Any) -> ImportedRun:
    """Return the run of a table whose axis may have any of our names."""
    unit = next((name for name in AXES if name in table.columns), "step")
    return run_of(table, settings, settings.axis(unit, unit), **about)


class Logs(Importer):
    """A file, or all files of a folder and below, with one run each."""

    def table(self, path: Path) -> Sheet:
        """Return the measurements of one file."""
        return read_table(path)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        for path in self.files(source):
            table = self.table(path)
            name = path.name if path == Path(source) else str(path.relative_to(source))
            aliases = (str(path), path.stem)
            yield on_any_axis(table, settings, name=name, aliases=aliases, files=(path,))
