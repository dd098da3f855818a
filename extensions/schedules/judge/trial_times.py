"""Step times from the trials of a sweep, as recorded in ``timing.json``, from which the hours of schedules follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.phrases import plural
from analysis.read.results import Results
from analysis.read.throughput import StepTimeTable, of_logs
from cbs.errors import ResultsError
from cbs.trial.step_times import StepTime
from cbs.trial.trial_files import read_timing

_MACHINE = ("device", "host", "threads")


def trial_times(results: Results) -> tuple[StepTimeTable | None, str]:
    """Return seconds per step at every constant batch size, the median over its trials, or why there are none.

    They are the seconds of all optimizer updates of a trial, including measurements but not evaluations, divided by its
    steps. Trials on different machines are not pooled: there are no times then.
    """
    rows = [_row(*trial) for trial in results.trials[["folder", "group", "batch_size", "final_step"]].itertuples(False)]
    known = pd.DataFrame([row for row in rows if row is not None])
    if known.empty:
        return None, "no trial recorded how long its steps took"
    machines = known[list(_MACHINE)].astype(str).drop_duplicates()
    if len(machines) > 1:
        return None, f"the trials ran on {plural(len(machines), 'machine')} that differ, so their times do not compare"
    times = [
        StepTime(
            batch_size=int(size),
            devices=int(workers),
            seconds=float(np.median(part["seconds"])),
            optimizer=results.groups[int(group)].optimizer,
            interval=of_logs(np.log(part["seconds"].to_numpy()))[1],
            repetitions=len(part),
        )
        for (group, workers, size), part in known.groupby(["group", "workers", "batch_size"])
    ]
    (machine,) = machines.itertuples(index=False)
    source = f"the trials themselves (on {machine.device or 'a device'}; trials that run side by side slow one another)"
    return StepTimeTable(tuple(times), source), ""


def _row(folder: Path, group: int, batch_size: int, steps: int) -> dict[str, Any] | None:
    """Return what a trial recorded; ``None`` if nothing usable."""
    try:
        timing = read_timing(folder / "timing.json")
        seconds, workers = float(timing["training_seconds"]), int(timing.get("workers", 1))
    except (ResultsError, ValueError, TypeError, KeyError):
        return None  # imported trials have none, and a missing time is no reason to refuse the sweep
    if not (steps and 0 < seconds < np.inf and workers > 0):
        return None
    about = {name: timing.get(name, "") for name in _MACHINE}
    return about | {"group": group, "batch_size": batch_size, "workers": workers, "seconds": seconds / steps}
