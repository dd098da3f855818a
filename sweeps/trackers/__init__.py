"""Experiment trackers that a sweep writes its trials to as well, one run each: their base class, and the content of a
trial that they write.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
