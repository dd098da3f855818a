"""Weights & Biases: offline unless ``WANDB_MODE`` says otherwise."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cbs.errors import needed
from cbs.trial.record import TrialResult
from sweeps.trackers import TRACKERS
from sweeps.trackers.base import Tracker, called, curve, outcome, settings

OFFLINE = "offline"


@TRACKERS.register("wandb")
class WandbTracker(Tracker):
    """Runs in the project ``WANDB_PROJECT``, or one :func:`called` like the folder; offline they are
    ``wandb/offline-run-*``."""

    files = "wandb"

    def __init__(self, folder: Path) -> None:
        with needed("wandb", "runs of Weights & Biases"):
            import wandb  # noqa: F401
        self._folder = folder
        self._mode = os.environ.get("WANDB_MODE", OFFLINE)
        # characters that it refuses in the name of a project
        self._project = os.environ.get("WANDB_PROJECT", re.sub(r"[/\\#?%:]", "-", called(folder)))

    def write(self, result: TrialResult) -> None:
        """Offline runs keep their id, so a trial that is written twice is one run once it is synchronised."""
        import wandb

        with wandb.init(
            project=self._project,
            id=result.config.fingerprint,
            name=result.trial_id,
            group=str(result.config.optimizer),
            config=settings(result),
            dir=str(self._folder),
            mode=self._mode,  # type: ignore[arg-type]
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        ) as run:
            for step, values in curve(result):
                run.log(values, step=step)
            run.summary.update({**outcome(result), "status": str(result.status)})

    def close(self) -> None:
        """wandb writes the file of a run after the run was finished: until its service has ended, it may be empty."""
        import wandb

        if wandb.run is None:  # else the service has runs of others in this process
            wandb.teardown()

    @property
    def where(self) -> str:
        if self._mode == OFFLINE:
            return f"wandb sync {self._folder / 'wandb'}/offline-run-*"
        return f"wandb project {self._project}"
