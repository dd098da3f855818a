"""Format ``lightning``: ``metrics.csv`` of Lightning's ``CSVLogger``, with ``hparams.yaml`` beside it; and how a
``Trainer`` counts the steps of any of its loggers.

A row holds what was logged in one call, so training and validation fill different columns. A ``Trainer`` passes its
loggers the number of updates made before the batch, starting from 0, whatever the accumulation, and validates before it
counts on: a row with ``step`` 99 was measured after 100 updates. Its rows also have an ``epoch``; if there is none,
steps are what the user's code passed to ``log_metrics``.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from analysis.read.importers.base import COLUMNS, IMPORTERS, LAYOUT, Claim, ImportedRun, Importer, in_folder, run_of
from analysis.read.importers.files import below, read_mapping
from analysis.read.importers.settings import Settings
from analysis.read.table import header_of, read_table

METRICS, HPARAMS = "metrics.csv", "hparams.yaml"
STEP, EPOCH = "step", "epoch"
_FROM_ZERO = (
    "{} from 0: 1 was added to each, so that steps count the updates made; if the runs log a step of their own, give "
    "it with --column step=THEIRS"
)


@IMPORTERS.register("lightning")
class Lightning(Importer):
    """A ``metrics.csv``, the folder of a run (``version_0``), or a folder of runs (``lightning_logs``)."""

    expected = "the metrics.csv of a CSVLogger, or a folder with one below"
    marks = ((METRICS,), METRICS)

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Claim files of that name that have settings beside them or the columns of a Trainer."""
        files = below(Path(source), METRICS)
        if sure := [path for path in files if (path.parent / HPARAMS).exists()]:
            return Claim.of(sure, f"{METRICS} with {HPARAMS} beside it", LAYOUT)
        seen = [path for path in files if {STEP, EPOCH} <= set(header_of(path))]
        return Claim.of(seen, f"{METRICS} with the columns {EPOCH} and {STEP}", COLUMNS)

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield one run per file, named after its folder."""
        top, axis = Path(source), settings.axis(STEP)
        for path in self.files(source):
            table, about = read_table(path), path.parent / HPARAMS
            config = read_mapping(about, "copy it again from where the run was trained") if about.exists() else {}
            run = run_of(table, settings, axis, config=config, files=(path,), **in_folder(path.parent, top))
            of_trainer = axis == (STEP, STEP) and EPOCH in table.columns
            yield from_zero(run, notes) if of_trainer else run


def from_zero(run: ImportedRun, notes: list[str], who: str = "a Trainer counts the steps of its logger") -> ImportedRun:
    """Return a run that counts from 0 with its steps as updates made; a note says so, and ``who`` does it."""
    if len(run.values):
        notes.append(_FROM_ZERO.format(who))
    return dataclasses.replace(run, axis=run.axis + 1)
