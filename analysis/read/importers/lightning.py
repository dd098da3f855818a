"""Format ``lightning``: ``metrics.csv`` of Lightning's ``CSVLogger``, with ``hparams.yaml`` beside it.

A row holds what was logged in one call, so training and validation fill different columns. A ``Trainer`` gives its
logger the updates made before the batch, from 0 on and whatever the accumulation, and validates before it counts on: a
row with ``step`` 99 was measured after 100 updates. Its rows have an ``epoch``, too; where there is none, steps are
what somebody passed to ``log_metrics``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from analysis.read.importers.base import COLUMNS, IMPORTERS, LAYOUT, Claim, Found, Request
from analysis.read.importers.files import below, read_yaml, run_name
from analysis.read.importers.runs import run_of
from analysis.read.table import header_of, read_table
from cbs.errors import DataError

METRICS, SETTINGS = "metrics.csv", "hparams.yaml"
_STEP, _EPOCH = "step", "epoch"
_FROM_ZERO = (
    "a Trainer counts the steps of its logger from 0: 1 was added to each, so that steps are updates made; where the "
    "runs log their own, give it with --column step=THEIRS"
)


@IMPORTERS.register("lightning")
class Lightning:
    """A ``metrics.csv``, the folder of a run (``version_0``), or a folder of runs (``lightning_logs``)."""

    def claims(self, source: str) -> Claim | None:
        """Files of that name, with settings beside them or with the columns of a Trainer."""
        files = below(Path(source), METRICS.__eq__)
        sure = [path for path in files if (path.parent / SETTINGS).exists()]
        if sure:
            return Claim.of(sure, f"{METRICS} with {SETTINGS} beside it", LAYOUT)
        seen = [path for path in files if {_STEP, _EPOCH} <= set(header_of(path))]
        return Claim.of(seen, f"{METRICS} with the columns {_EPOCH} and {_STEP}", COLUMNS)

    def read(self, source: str, request: Request) -> Found:
        """One run per file, called by its folder."""
        top = Path(source)
        files = [top] if top.is_file() else below(top, METRICS.__eq__)
        if not files:
            raise DataError(f"no {METRICS} at {source}: expected that of a CSVLogger, or a folder of runs")
        axis = request.axis(_STEP)
        runs, metrics, notes = [], set[str](), set[str]()
        for path in files:
            table = read_table(path)
            settings = path.parent / SETTINGS
            folder = path.parent
            run = run_of(
                table,
                request,
                axis,
                name=run_name(folder, folder if top.is_file() else top),
                aliases=(str(folder), folder.resolve().name),
                config=read_yaml(settings, "copy it again from where the run was trained") if settings.exists() else {},
            )
            if axis == (_STEP, _STEP) and _EPOCH in table.columns and len(run.values):
                run = dataclasses.replace(run, axis=run.axis + 1)
                notes.add(_FROM_ZERO)
            runs.append(run)
            metrics |= set(table.columns) - {_STEP, _EPOCH}
        return Found(runs=runs, metrics=sorted(metrics), files=files, notes=sorted(notes))
