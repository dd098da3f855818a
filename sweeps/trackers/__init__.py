"""Experiment trackers that a sweep writes its trials to as well, one run each: their base class, and the content of a
trial that they write.
"""

import math
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cbs.errors import needed
from cbs.files import refuse_links
from cbs.registry import Registry
from cbs.trial.record import TrialResult


class Tracker(ABC):
    """Writes every finished trial as a run, named and identified by the trial's id.

    Args:
        folder: folder of the sweep, which exists. A tracker that writes files uses a subfolder of its own, unless its
            own settings say otherwise.

    Attributes:
        files: name of this subfolder.

    Raises:
        MissingDependencyError: if its package is not installed.
    """

    files: str

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def write(self, result: TrialResult) -> None:
        """Write a trial as a whole run; may raise any error of the tracker's package."""

    def close(self) -> None:  # noqa: B027 - most packages have written a run when its last call returns
        """Wait until every run is on disk or sent; called once, after the last trial."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Where the user finds the runs, in a few words."""


def called(folder: Path) -> str:
    """Return the name of a sweep: that of its folder. For one of several widths, the name of the parent folder
    comes first, because other sweeps over widths have the same names."""
    here = folder.resolve()
    return f"{here.parent.name}-{here.name}" if re.fullmatch(r"width-\d+", here.name) else here.name


def settings(result: TrialResult) -> dict[str, Any]:
    """Return the configuration of a trial and its fingerprint as single values by name: ``optimizer.name``, ``lr``."""
    stated = dict(_flat("stated.", result.stated))
    return {"fingerprint": result.config.fingerprint, **dict(_flat("", result.config.to_dict())), **stated}


def outcome(result: TrialResult) -> dict[str, float]:
    """Return the final numbers of a trial: steps and examples to the target if it was reached, and the last step."""
    metrics = {
        "steps_to_target": result.steps_to_target,
        "examples_to_target": result.examples_to_target,
        "final_step": result.final_step,
    }
    return {name: value for name, value in metrics.items() if value is not None}


def curve(result: TrialResult) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield step and values of every evaluation; values that are not finite are left out, as trackers refuse them."""
    metric = result.config.target.metric
    for point in result.evaluations:
        values = {
            "train_loss": point.train_loss,
            "lr": point.lr,
            "examples": float(point.examples),
            metric: point.value,  # last, as the metric may have one of these names
        }
        yield point.step, {name: value for name, value in values.items() if math.isfinite(value)}


def _flat(above: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{above}{name}.", value)
        elif value is not None:
            yield above + name, value if isinstance(value, bool | int | float | str) else str(value)


TRACKERS: Registry[type[Tracker]] = Registry("tracker", "sweeps.trackers", derived_from=Tracker)

__all__ = ["TRACKERS", "Tracker"]


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
