"""Format ``openrlbenchmark``: the runs that Open RL Benchmark keeps when it is run with ``--scan-history``.

``openrlbenchmark/dataset/ENTITY/PROJECT/ID`` has ``run_df.csv``, the whole history of a run of Weights & Biases, and
``run.json`` with its name and config. The other tables that it writes (``compare.csv``) contain a mean and a standard
deviation per environment, no curves, so they cannot be imported.

Histories count environment steps in ``global_step`` and calls of the logger in ``_step``. Neither counts optimizer
updates, so the user has to say what the axis is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.read.importers.base import COLUMNS, IMPORTERS, Claim, ImportedRun, Importer, in_folder, run_of
from analysis.read.importers.files import read_mapping
from analysis.read.importers.settings import AXES, Settings
from analysis.read.table import Sheet, header_of, read_table
from cbs.errors import DataError

HISTORY, ABOUT = "run_df.csv", "run.json"
_DEVIATION = "±"
_WRAPPED = {"value", "desc"}


@IMPORTERS.register("openrlbenchmark")
class OpenRLBenchmark(Importer):
    """A ``run_df.csv``, the folder of a run, or any folder of runs."""

    expected = f"the runs it keeps with --scan-history, openrlbenchmark/dataset with {HISTORY} and {ABOUT}"
    marks = (HISTORY, HISTORY)

    def claims(self, source: str) -> Claim | None:
        """Claim histories by their name, or a table of means and deviations, which is then refused."""
        path = Path(source)
        histories = super().claims(source)
        if histories or not path.is_file() or header_of(path)[:1] != [""]:
            return histories
        return Claim.of([path] if _is_summary(read_table(path)) else [], "table of means ± deviations", COLUMNS)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        top = Path(source)
        for path in self.files(source):
            table, about = read_table(path), path.parent / ABOUT
            if _is_summary(table):
                raise DataError(
                    f"{path} holds a mean and a deviation per environment, no curves; import {self.expected}"
                )
            if not any(unit in settings.columns for unit in AXES):
                raise DataError(
                    f"{path}: global_step counts environment steps and _step calls of the logger, not optimizer "
                    "updates; say what the axis is: --column examples=global_step if batch sizes are in environment "
                    f"steps, or --column step=NAME for a column of updates; it has {table.titles}"
                )
            run = read_mapping(about, "run the tool once more") if about.exists() else {}
            if "_attrs" in run:
                raise DataError(f"{about} is of an old version of the tool; run it once more, which writes a new one")
            yield run_of(
                table,
                settings,
                config=_plain(run.get("config")),
                files=(path, about) if run else (path,),
                **in_folder(path.parent, top, *(str(run[key]) for key in ("name", "id") if key in run)),
            )


def _is_summary(table: Sheet) -> bool:
    first = [cells[0] for title, cells in table.columns.items() if title]
    return bool(first) and all(isinstance(cell, str) and _DEVIATION in cell for cell in first)


def _plain(config: Any) -> dict[str, Any]:
    """Return the settings without the ``{"value": ...}`` that wraps raw ones of Weights & Biases."""
    if not isinstance(config, dict):
        return {}
    given = {str(key): value for key, value in config.items() if value or value == 0}
    wrapped = [key for key, value in given.items() if isinstance(value, dict) and {"value"} <= set(value) <= _WRAPPED]
    return given | {key: given[key]["value"] for key in wrapped}
