"""TensorBoard: event files, with the settings of every trial in the table of hyperparameters."""

from __future__ import annotations

import shutil
from pathlib import Path

from cbs.files import refuse_links
from cbs.trial.record import TrialResult
from sweeps.trackers import TRACKERS, Tracker, curve, outcome, settings


@TRACKERS.register("tensorboard")
class TensorBoardTracker(Tracker):
    """Writes runs to ``tensorboard/<trial id>`` in the folder of the sweep; ``tensorboard --logdir`` shows them.

    The files are written by tensorboardX, which comes with Ray Tune.
    """

    files = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / self.files

    def write(self, result: TrialResult) -> None:
        """Write a run, replacing what a killed sweep has left of it."""
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        place = self._folder / result.trial_id
        refuse_links(self._folder, place)
        shutil.rmtree(place, ignore_errors=True)
        with SummaryWriter(str(place)) as writer:
            for summary in hparams({**settings(result), "status": str(result.status)}, outcome(result)):
                writer.file_writer.add_summary(summary)
            for step, values in curve(result):
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
            for name, value in outcome(result).items():
                writer.add_scalar(name, value, result.final_step)

    @property
    def where(self) -> str:
        return f"tensorboard --logdir {self._folder}"
