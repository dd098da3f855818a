"""Logs with one run per file: formats ``jsonl`` and ``csv``.

The log of a training script needs no column ``run``, and a column ``lr`` or ``seed`` in it is a measurement like any
other: the learning rate of that step. Facts about its run come from elsewhere: its name, or a table of runs.
"""

from collections.abc import Iterator
from pathlib import Path

from analysis.read.importers.base import IMPORTERS, Claim, ImportedRun, Importer, axis_of, from_zero, in_file, run_of
from analysis.read.importers.files import below
from analysis.read.importers.settings import Settings
from analysis.read.table import header_of, read_table

_DETECTRON = {"eta_seconds", "data_time"}  # What detectron2's metrics.json has beside its iterations, and no other log


class Logs(Importer):
    """A file, or all files of a folder and below, with one run each."""

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        for path in self.files(source):
            table = read_table(path)
            run = run_of(table, settings, axis_of(table, settings), **in_file(path, source))
            of_detectron = settings.columns.get("step") == "iteration" and table.columns.keys() >= _DETECTRON
            yield from_zero(run, notes, "detectron2 counts iterations") if of_detectron else run


@IMPORTERS.register("csv")
class CsvLog(Logs):
    """A CSV file with a header. Never detected automatically: a CSV file may hold many runs, see format ``table``."""

    expected = "a file that ends in .csv, or a folder of them"
    marks = (("*.csv",), "CSV files")

    def claims(self, source: str, settings: Settings) -> Claim | None:
        return None


@IMPORTERS.register("jsonl")
class JsonLines(Logs):
    """A JSON object per line, as in Ray's ``result.json``; objects in it are columns ``config/lr``, as in its CSV."""

    expected = "a file that ends in .jsonl, or Ray's result.json, or a folder of them"
    marks = (("*.jsonl", "result.json"), "files of JSON lines")

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim files of these names, which hold no runs that have names."""
        ours = below(Path(source), *self.marks[0])
        several = ours and settings.columns.get("run", "run") in header_of(ours[0])  # it is a table of runs
        return None if several else Claim.of(ours, self.marks[1])
