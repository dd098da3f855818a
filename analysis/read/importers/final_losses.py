"""Format ``final_losses``: a table with the metric at the end of every run, and no curves.

One row per run: columns ``batch_size``, ``lr``, one of ``tokens``, ``examples`` and ``step`` for its length, and the
metric; optionally ``optimizer``, ``seed`` and other facts. A run that diverged has ``nan``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.read import cells
from analysis.read.importers.base import COLUMNS, IMPORTERS, Claim, ImportedRun, Importer
from analysis.read.importers.settings import AXES, CONFIG, FACTS, Settings, fact
from analysis.read.table import Sheet, header_of, read_table, table_paths

_NEEDED = ("batch_size", "lr")


@IMPORTERS.register("final_losses")
class FinalLosses(Importer):
    """Columns ``batch_size``, ``lr``, ``tokens`` (or ``examples`` or ``step``) and the metric."""

    expected = "a file that ends in .csv, .tsv or .parquet, or a folder of them, with one row per run"

    def claims(self, source: str) -> Claim | None:
        """Claim tables with a batch size and a learning rate in every row and no column that names a run."""
        paths = table_paths(Path(source)) if Path(source).exists() else []
        titles = [header_of(path) for path in paths]
        if not paths or any("run" in each or not {*_NEEDED} <= {*each} for each in titles):
            return None
        return Claim.of(paths, "tables with batch_size, lr and no run: one row per run", COLUMNS)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield one run per row."""
        for path in table_paths(Path(source)):
            table = read_table(path)
            unit, title = settings.axis(next((name for name in AXES if name in table.columns), "tokens"), "tokens")
            if unit == "tokens" and title in AXES:
                unit = title
            table.need(title, "how long a run was; rename with --column tokens=THEIRS, examples=THEIRS or step=THEIRS")
            table.need(settings.measured, "see --metric")
            renamed = {name: settings.columns.get(name, name) for name in FACTS}
            there = {name: title for name, title in renamed.items() if title in table.columns}
            for name in set(settings.columns) & set(FACTS):
                if name not in there and not renamed[name].startswith(CONFIG):
                    table.need(renamed[name], f"see --column {name}=THEIRS")
            for row, place in enumerate(table.places):
                yield _run(table, row, settings, unit, title, there, f"{path.name}, {place}", path)


def _run(
    table: Sheet, row: int, settings: Settings, unit: str, axis: str, there: dict[str, str], name: str, path: Path
) -> ImportedRun:
    facts: dict[str, Any] = {
        each: table.cell(row, title, functools.partial(fact, each))
        for each, title in there.items()
        if not cells.empty(table.columns[title][row])
    }
    rest = [title for title in table.columns if title not in ("", axis, *there.values())]
    return ImportedRun(
        name=name,
        place=table.name,
        axis=table.numbers(axis, [row], minimum=0.0, where_empty="it is empty; write how long the run was"),
        values=table.numbers(settings.measured, [row]),
        unit=unit,
        facts=facts,
        metrics=rest,
        files=(path,),
    )
