"""Format ``final_losses``: a table with the metric at the end of every run, and no curves.

One row per run: columns ``batch_size``, ``lr``, one of ``tokens``, ``examples`` and ``step`` for its length, and the
metric; optionally ``optimizer``, ``seed`` and other facts. A run that diverged has ``nan``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from analysis.read.importers.base import COLUMNS, IMPORTERS, Claim, ImportedRun, Importer, run_of
from analysis.read.importers.settings import AXES, Settings
from analysis.read.importers.titles import settled
from analysis.read.table import header_of, read_table, table_paths


@IMPORTERS.register("final_losses")
class FinalLosses(Importer):
    """Columns ``batch_size``, ``lr``, ``tokens`` (or ``examples`` or ``step``) and the metric."""

    expected = "a file that ends in .csv, .tsv or .parquet, or a folder of them, with one row per run"

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim tables with a batch size and a learning rate in every row, by whatever title, and none of runs."""
        paths = table_paths(Path(source)) if Path(source).exists() else []
        size, rate, run = (settings.columns.get(name, name) for name in ("batch_size", "lr", "run"))
        titles = [{*header_of(path)} for path in paths]
        needed = {size} if "lr" in settings.constants else {size, rate}
        if not paths or any({run, "run"} & each or not needed <= each for each in titles):
            return None
        return Claim.of(paths, "tables with batch_size, lr and no run: one row per run", COLUMNS)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield one run per row."""
        for path in table_paths(Path(source)):
            table = read_table(path)
            settings = settled(table, settings)
            unit, title = settings.axis(next((name for name in AXES if name in table.columns), "tokens"), "tokens")
            if unit == "tokens" and title in AXES:
                unit = title
            table.need(title, "how long a run was; rename with --column tokens=THEIRS, examples=THEIRS or step=THEIRS")
            for row, place in enumerate(table.places):
                name = f"{path.name}, {place}"
                yield run_of(table.rows([row]), settings, (unit, title), name=name, named=True, files=(path,))
