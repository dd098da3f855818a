"""What an experiment tracker is to a sweep, and what it is told of a trial."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cbs.trial.record import TrialResult


class Tracker(ABC):
    """Writes finished trials, a run each, named and identified by the trial's id.

    Args:
        folder: of the sweep, which exists; a tracker that keeps files keeps them in a folder of its own in it, unless
            its own settings say otherwise.

    Attributes:
        files: name of that folder.

    Raises:
        MissingDependencyError: if its package is not installed.
    """

    files: str

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def write(self, result: TrialResult) -> None:
        """Write a trial as a whole run. Raises what its package raises."""

    def close(self) -> None:  # noqa: B027 - most packages have written a run when its last call returns
        """Wait until every run is on disk or sent; called once, after the last trial."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Where a person finds the runs, in a few words."""


def called(folder: Path) -> str:
    """What a sweep is called among others: like its folder; one width of a telescope, all of which have the same
    names, after the telescope, too."""
    here = folder.resolve()
    return f"{here.parent.name}-{here.name}" if re.fullmatch(r"width-\d+", here.name) else here.name


def settings(result: TrialResult) -> dict[str, Any]:
    """The configuration of a trial and its fingerprint, one value a name: ``optimizer.name``, ``lr``."""
    stated = dict(_flat("stated.", result.stated))
    return {"fingerprint": result.config.fingerprint, **dict(_flat("", result.config.to_dict())), **stated}


def outcome(result: TrialResult) -> dict[str, float]:
    """The numbers a trial ended with: steps and examples to the target where it was reached, and the last step."""
    metrics = {
        "steps_to_target": result.steps_to_target,
        "examples_to_target": result.examples_to_target,
        "final_step": result.final_step,
    }
    return {name: value for name, value in metrics.items() if value is not None}


def curve(result: TrialResult) -> Iterator[tuple[int, dict[str, float]]]:
    """Step and values of every evaluation; a loss that is not finite is left out, as trackers refuse it."""
    metric = result.config.target.metric
    for point in result.evaluations:
        values = {
            "train_loss": point.train_loss,
            "lr": point.lr,
            "examples": float(point.examples),
            metric: point.value,  # last, as it may be called like one of these
        }
        yield point.step, {name: value for name, value in values.items() if math.isfinite(value)}


def _flat(above: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{above}{name}.", value)
        elif value is not None:
            yield above + name, value if isinstance(value, bool | int | float | str) else str(value)
