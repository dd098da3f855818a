"""Format ``csv``: a CSV file with a header per run."""

from __future__ import annotations

from analysis.read.importers.base import IMPORTERS, Claim
from analysis.read.importers.logs import Logs
from analysis.read.importers.settings import Settings


@IMPORTERS.register("csv")
class CsvLog(Logs):
    """A CSV file with a header. Never detected automatically: a CSV file may hold many runs, see format ``table``."""

    expected = "a file that ends in .csv, or a folder of them"
    marks = ("*.csv", "CSV files")

    def claims(self, source: str, settings: Settings) -> Claim | None:
        return None
