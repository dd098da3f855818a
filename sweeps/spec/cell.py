"""Keys of studies and cells in the grid of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cbs.registry.choices import Choice
    from cbs.trial.config import TrialConfig


def study_label(optimizer: Choice | str, batch_schedule: Choice | str | None) -> str:
    """Return the text by which studies identify an optimizer under a batch schedule."""
    return str(optimizer) if batch_schedule is None else f"{optimizer}, {batch_schedule}"


@dataclass(frozen=True, order=True)
class StudyKey:
    """Identifies all trials at one optimizer and batch size.

    The optimizer is the text of its choice with its options, followed by its batch schedule if it has one.
    """

    optimizer: str
    batch_size: int


@dataclass(frozen=True, order=True)
class Cell:
    """Identifies all trials at one optimizer, batch size and seed: they differ in learning rate and see the same
    data."""

    optimizer: str
    batch_size: int
    seed: int

    @classmethod
    def of(cls, trial: TrialConfig) -> Cell:
        """Return the cell that a trial belongs to."""
        return cls(study_label(trial.optimizer, trial.batch_schedule), trial.batch_size, trial.seed)

    @property
    def study(self) -> StudyKey:
        return StudyKey(self.optimizer, self.batch_size)


@dataclass(frozen=True)
class StagedStudy:
    """A study of a sweep that grows: what it was asked for, and when.

    Attributes:
        study: the study.
        stage: number of the stage in which it was first asked for; searches of earlier stages tell where to start.
        seeds: its seeds, increasing.
        lrs: its learning rates if it is not searched; ``None`` for those of the sweep.
        bracket: whether its best learning rate is to lie between worse ones, whatever other batch sizes say of it.
    """

    study: StudyKey
    stage: int
    seeds: tuple[int, ...]
    lrs: tuple[float, ...] | None = None
    bracket: bool = False
