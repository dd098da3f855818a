"""TensorBoard and Weights & Biases."""

import os
import re
import shutil
from pathlib import Path

from cbs.errors import needed
from cbs.files import refuse_links
from cbs.trial.record import TrialResult
from sweeps.launching.trackers import TRACKERS, Tracker, called, curve, outcome, settings


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

        folder = self._folder / result.trial_id
        refuse_links(self._folder, folder)
        shutil.rmtree(folder, ignore_errors=True)
        with SummaryWriter(str(folder)) as writer:
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


OFFLINE = "offline"


@TRACKERS.register("wandb")
class WandbTracker(Tracker):
    """Writes runs to the project ``WANDB_PROJECT``, by default named by :func:`called`; offline runs are
    ``wandb/offline-run-*`` in the folder of the sweep."""

    files = "wandb"

    def __init__(self, folder: Path) -> None:
        with needed("wandb", "runs of Weights & Biases"):
            import wandb  # noqa: F401
        self._folder = folder
        self._mode = os.environ.get("WANDB_MODE", OFFLINE)
        # wandb refuses these characters in the name of a project
        self._project = os.environ.get("WANDB_PROJECT", re.sub(r"[/\\#?%:]", "-", called(folder)))

    def write(self, result: TrialResult) -> None:
        """Write a run; offline runs keep their id, so a trial that was written twice becomes one run when uploaded."""
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
        """End wandb's service, which writes the files of runs only after they have finished."""
        import wandb

        if wandb.run is None:  # otherwise other code in this process uses the service
            wandb.teardown()

    @property
    def where(self) -> str:
        if self._mode == OFFLINE:
            return f"wandb sync {self._folder / 'wandb'}/offline-run-*"
        return f"wandb project {self._project}"
