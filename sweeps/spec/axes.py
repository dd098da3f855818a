"""The axes of a sweep: what its trials differ in, and the studies and cells of the grid that follow from it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, labels
from cbs.trial.config import CONSTANT, TrialConfig
from sweeps.spec.given_rates import PrescribedRate


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


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Values that the trials of a sweep differ in: every combination runs, unless ``staged`` lists those that do.

    Attributes:
        optimizers: optimizers with their options; one name may appear several times with different options.
        tuned: options of each optimizer, by its name, that are tuned at every batch size like the learning rate, see
            :mod:`sweeps.external.asked`; choices that differ only in these options form one curve in an analysis.
        batch_schedules: batch-size schedules with their options, each combined with every optimizer; see
            :mod:`cbs.schedules.batch_size`.
        batch_sizes: batch sizes in examples, increasing.
        lrs: learning rates to try, all of them and no others; ``None`` for the optimizer's own.
        lr_rule: one learning rate for every batch size, instead of ``lrs`` and of a search.
        seeds: seeds; every cell of the grid runs once per seed.
        budgets: numbers of examples after which the metric is read, instead of steps to a target: every trial sees that
            many, whatever it reaches. If the learning-rate schedule ends with the budget, each budget has its own
            trials; otherwise the trials of the largest budget serve all.
        staged: the studies of a sweep that grows, each with seeds of its own, in place of every combination of the
            axes, which hold all their values.
    """

    optimizers: tuple[Choice, ...]
    batch_sizes: tuple[int, ...]
    tuned: dict[str, list[str]] = field(default_factory=dict)
    batch_schedules: tuple[Choice, ...] = (Choice(name=CONSTANT),)
    lrs: tuple[float, ...] | None = None
    lr_rule: PrescribedRate | None = None
    seeds: tuple[int, ...] = (0,)
    budgets: tuple[int, ...] = ()
    staged: tuple[StagedStudy, ...] = ()

    def __post_init__(self) -> None:
        for axis in ("optimizers", "batch_schedules", "batch_sizes", "seeds", "lrs"):
            values = getattr(self, axis)
            if values is None:
                continue
            if not values:
                raise ConfigError(f"a sweep needs at least one value of {axis}")
            keys = [str(value) if isinstance(value, Choice) else value for value in values]
            if len(set(keys)) != len(keys):
                raise ConfigError(f"{axis} holds a value twice: {', '.join(map(str, keys))}")
            if axis not in ("optimizers", "batch_schedules"):  # tables keep the order in which these were asked for
                object.__setattr__(self, axis, tuple(sorted(values)))
        object.__setattr__(self, "budgets", tuple(sorted(self.budgets)))
        for batch_size in self.batch_sizes:
            if not isinstance(batch_size, int) or batch_size < 1:
                raise ConfigError(f"batch sizes must be whole numbers of at least 1, got {batch_size}")
        for lr in self.lrs or ():
            if not (math.isfinite(lr) and lr > 0):
                raise ConfigError(f"learning rates must be finite and above 0, got {lr:g}")
        for batch_size in self.batch_sizes if self.lr_rule is not None else ():
            self.lr_rule.at(batch_size)  # type: ignore[union-attr]

    @functools.cached_property
    def curves(self) -> dict[str, tuple[Choice, Choice | None]]:
        """Every optimizer under every batch schedule, ``None`` for a constant batch size, by the text that identifies
        both in studies and cells."""
        schedules = [None if schedule == Choice(name=CONSTANT) else schedule for schedule in self.batch_schedules]
        return {
            study_label(choice, schedule): (choice, schedule) for choice in self.optimizers for schedule in schedules
        }

    @functools.cached_property
    def labels(self) -> dict[str, str]:
        """Names for display by the same texts: the optimizer's name with what distinguishes its variants."""
        optimizers = dict(zip(map(str, self.optimizers), labels(self.optimizers), strict=True))
        schedules = dict(zip(map(str, self.batch_schedules), labels(self.batch_schedules), strict=True))
        return {
            text: study_label(optimizers[str(choice)], schedule and schedules[str(schedule)])
            for text, (choice, schedule) in self.curves.items()
        }

    @functools.cached_property
    def plans(self) -> dict[StudyKey, StagedStudy]:
        """The studies in order: every combination of curve and batch size, or those of the stages."""
        if self.staged:
            order = {text: index for index, text in enumerate(self.curves)}
            in_order = sorted(self.staged, key=lambda plan: (order[plan.study.optimizer], plan.study.batch_size))
            return {plan.study: plan for plan in in_order}
        studies = [StudyKey(text, batch_size) for text in self.curves for batch_size in self.batch_sizes]
        return {study: StagedStudy(study, 0, self.seeds) for study in studies}

    def pooled(self, choice: Choice) -> Choice:
        """Return an optimizer without its tuned options, under which an analysis pools all their values."""
        tuned: Sequence[str] = self.tuned.get(choice.name, ())
        return Choice(
            name=choice.name, options={key: value for key, value in choice.options.items() if key not in tuned}
        )

    def to_json(self) -> dict[str, Any]:
        """Return the axes as plain JSON values."""
        schedules = [str(schedule) for schedule in self.batch_schedules]
        return {
            "optimizers": [str(choice) for choice in self.optimizers],
            **({} if schedules == [CONSTANT] else {"batch_schedules": schedules}),
            **({"tuned": self.tuned} if self.tuned else {}),
            "batch_sizes": list(self.batch_sizes),
            "lrs": None if self.lrs is None else list(self.lrs),
            **({} if self.lr_rule is None else {"lr_rule": [str(self.lr_rule)]}),
            **({"budgets": list(self.budgets)} if self.budgets else {}),
            "seeds": list(self.seeds),
        }
