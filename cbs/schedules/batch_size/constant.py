"""The trial's own batch size for the whole run."""

from __future__ import annotations

from cbs.schedules.batch_size import BATCH_SCHEDULES, OpenLoop, RunSettings, Stage


@BATCH_SCHEDULES.register("constant")
def constant(run: RunSettings) -> OpenLoop:
    """Return a single stage; the same as no batch schedule."""
    return OpenLoop(starts=(0,), stages=(Stage(run.batch_size),))
