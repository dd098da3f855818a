"""A sweep: a prototype of its trials, their axes, the search and the start. Knows nothing of Ray."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from typing import Any

from cbs.diagnostics import build_diagnostics
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.trial.config import COMMAND, Choice, TrialConfig, fingerprint, plain_values
from cbs.trial.parent import Parent
from cbs.trial.target import Target
from sweeps.spec.axes import Axes, Cell, StudyKey
from sweeps.spec.given_rates import Prior
from sweeps.spec.lengths import ScheduleRule, check_budget

SEARCHES = ("bracket", "grid")

# Smallest ratio of the steps of two evaluations in trials that end with their budget; the sweep's own is used if it is
# larger. The whole curve of such a trial is read, by linear interpolation in ln steps.
BUDGET_GROWTH = 1.1

UNRESOLVED = Target(metric="", value=0.0)  # Target of a prototype as long as it is not known: the workload's own

# Fields of the prototype that say nothing, because the axes, the start and the budget set them in every trial
_SET_BY_AXES = ("optimizer", "lr", "batch_size", "seed", "batch_schedule", "max_steps", "parent", "stops_at_target")


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """How the best learning rate of every optimizer and batch size is found.

    Attributes:
        method: ``"bracket"`` starts at the middle of the learning rates of each optimizer and goes on until the best
            one has a worse one on either side; ``"grid"`` tries all of them on every seed, which is always done if
            ``lrs`` are given.
        lr_resolution: smallest ratio between two learning rates of a search.
        warm_start: learning rates at which the search starts, by the text of an optimizer, see
            :mod:`sweeps.search.warm_start`.
        judged_by: the metric of the target whose steps the search minimises; ``None`` for that of ``target``.
        judged_at: the one of ``budgets`` at which the search reads the metric; ``None`` for the largest.
        within: difference of the metric that matters, by which the search at equal budgets decides which learning rates
            are near the best; ``None`` for what a few percent of the data are worth.
        prune_factor: a trial is stopped once it has passed this multiple of the best steps of its cell; ``None`` never.
            With budgets or several targets none is stopped.
    """

    method: str = "bracket"
    lr_resolution: float = 1.04
    warm_start: dict[str, Prior] = field(default_factory=dict)
    judged_by: str | None = None
    judged_at: int | None = None
    within: float | None = None
    prune_factor: float | None = 1.3

    def __post_init__(self) -> None:
        if self.method not in SEARCHES:
            raise ConfigError(f"unknown search {self.method!r}; known: {', '.join(SEARCHES)}")
        if not 1.01 < self.lr_resolution <= 2.0:
            raise ConfigError(f"lr_resolution must be above 1.01 and at most 2, got {self.lr_resolution:g}")
        if self.prune_factor is not None and not self.prune_factor > 1.0:
            raise ConfigError(f"prune_factor must exceed 1, got {self.prune_factor}; 'none' turns pruning off")
        if self.within is not None and not (isinstance(self.within, int | float) and 0 < self.within < math.inf):
            raise ConfigError(f"within, a difference of the metric, must be above 0, got {self.within}")


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where trials start, and what they keep for others to start from.

    Attributes:
        parent: the checkpoint from which every trial starts; ``None`` for fresh weights.
        trunk: batch size and learning rate of the run that wrote the checkpoint, if the trials are branches of it; they
            may share a folder with it and with branches of other checkpoints.
        keep: numbers of examples after which trials save a checkpoint for other trials to start from.
        after: name of an earlier stage of a policy, from whose only checkpoint every trial starts, without the state of
            its optimizer; known once that stage has run. Empty for none.
    """

    parent: Parent | None = None
    trunk: tuple[int, float] | None = None
    keep: tuple[int, ...] = ()
    after: str = ""

    def parent_of(self, batch_size: int, lr: float) -> Parent | None:
        """Return the parent of a trial, with how the trial differs from the run that wrote the checkpoint."""
        if self.parent is None or self.trunk is None:
            return self.parent
        size, rate = self.trunk
        return dataclasses.replace(self.parent, batch_factor=batch_size / size, lr_factor=lr / rate)


def prototype(*, workload: Choice, target: Target | None = None, **shared: Any) -> TrialConfig:
    """Return a prototype of the trials of a sweep.

    Args:
        workload: the workload.
        target: target at which a trial stops; ``None`` takes the workload's own.
        shared: further fields of :class:`~cbs.trial.config.TrialConfig` that all trials share.

    Raises:
        ConfigError: if a value is out of its domain.
    """
    return TrialConfig(
        workload=workload,
        target=UNRESOLVED if target is None else target,
        optimizer=Choice(name="sgd"),
        lr=1.0,
        batch_size=1,
        seed=0,
        max_steps=1,
        **shared,
    )


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A prototype trial, the axes along which trials differ from it, the search of learning rates, and the start.

    Attributes:
        name: name of the recipe it came from.
        trial: the prototype, see :func:`prototype`: what all trials share. What the other fields of the sweep set in
            every trial says nothing in it.
        axes: what trials differ in.
        search: how learning rates are searched.
        start: the checkpoint from which trials start, if any.
        metric: the metric of the target if it is not the workload's own: another metric of the workload, or one of
            :data:`cbs.training.metrics.METRICS`.
        max_steps: together with ``max_examples`` the largest number of updates that a trial may take to the target:
            ``max_steps + max_examples / batch_size``.
        max_examples: second part of the largest number of updates that a trial may take to the target, see
            ``max_steps``.
        schedule: learning-rate schedule; batch schedules are an axis.
        expected: rough ``(min_steps, min_examples)`` of the workload at its target, for time estimates and for the
            batch sizes with which a sweep begins that finds them.
        usual_precision: half-width of the interval of ``ln B_crit`` to which such a sweep goes if none is requested.
    """

    name: str
    trial: TrialConfig
    axes: Axes
    search: SearchPlan = field(default_factory=SearchPlan)
    start: Start = field(default_factory=Start)
    metric: str | None = None
    max_steps: int = 2_000
    max_examples: int = 100_000
    schedule: ScheduleRule = field(default_factory=ScheduleRule)
    expected: tuple[float, float] | None = None
    usual_precision: float = 0.2

    def __post_init__(self) -> None:
        if self.budgets:
            continued = self.start.parent is not None and bool(self.start.parent.examples)
            check_budget(self.budgets[0], self.axes.batch_sizes[-1], None if continued else self.schedule)
        build_diagnostics(self.trial.diagnostics, compiled=self.trial.compile)
        if self.max_steps < 1 or self.max_examples < 0:
            raise ConfigError(
                f"the budget must be positive, got max_steps={self.max_steps}, max_examples={self.max_examples}"
            )

    def replace(self, **changes: Any) -> Sweep:
        """Return a copy with some fields changed, of the sweep itself or of its parts: see :data:`PART_OF`."""
        parts: dict[str, dict[str, Any]] = {}
        for name in [name for name in changes if PART_OF.get(name)]:
            parts.setdefault(PART_OF[name], {})[name] = changes.pop(name)
        for part, changed in parts.items():
            changes[part] = dataclasses.replace(changes.get(part, getattr(self, part)), **changed)
        return dataclasses.replace(self, **changes)

    def value(self, name: str) -> Any:
        """Return the value of a field of the sweep or of one of its parts, as :meth:`replace` names it."""
        return getattr(getattr(self, PART_OF[name]) if PART_OF.get(name) else self, name)

    @functools.cached_property
    def shares_trials(self) -> bool:
        """Whether the trials to the first target or the largest budget serve all others: there are several targets, or
        the schedule does not end with the budget."""
        ends = bool(self.budgets) and self.schedule.ends_with(self.budgets[-1])
        return bool(self.trial.further_targets) or (bool(self.budgets) and not ends)

    @property
    def budgets(self) -> tuple[int, ...]:
        """Numbers of examples after which the metric is read, see :class:`~sweeps.spec.axes.Axes`."""
        return self.axes.budgets

    @property
    def prune_factor(self) -> float | None:
        """The bound of :class:`SearchPlan`; ``None`` where no trial is stopped."""
        return None if self.trial.further_targets or self.budgets else self.search.prune_factor

    @property
    def target(self) -> Target | None:
        """The target at which a trial stops; ``None`` as long as it is not known."""
        return None if self.trial.target == UNRESOLVED else self.trial.target

    @property
    def aim(self) -> str:
        """All targets in words."""
        return " and ".join(map(str, self.trial.targets))

    @property
    def judged(self) -> Target | None:
        """The target whose steps the search minimises."""
        further = self.trial.further_targets
        return next((target for target in further if target.metric == self.search.judged_by), self.target)

    @property
    def unmet(self) -> dict[int, int]:
        """Number of examples that trials see, by batch size, where the largest budget is not a whole number of
        batches."""
        met = {size: size * self.budget(size) for size in self.axes.batch_sizes} if self.budgets else {}
        return {size: examples for size, examples in met.items() if examples != self.budgets[-1]}

    @property
    def budget_judged(self) -> int | None:
        """Number of examples at which the metric is read; ``None`` if trials run to the target."""
        return self.search.judged_at or (self.budgets[-1] if self.budgets else None)

    def on(self, workload: str) -> Sweep:
        """Return the sweep on another workload with that workload's own target; unchanged if it is the same
        workload."""
        if workload == self.trial.workload.name:
            return self
        return self.replace(workload=Choice(name=workload), target=UNRESOLVED, expected=None)

    @functools.cached_property
    def choices(self) -> dict[str, Choice]:
        """The optimizers by their text under every batch schedule, which is the key in studies and cells."""
        return {text: choice for text, (choice, _) in self.axes.curves.items()}

    @property
    def exhaustive(self) -> bool:
        """Whether every learning rate of a list is tried on every seed."""
        return self.search.method != "bracket" or self.axes.lrs is not None or self.axes.lr_rule is not None

    def listed_lrs(self, study: StudyKey) -> tuple[float, ...]:
        """Return the learning rates of a study that is not searched."""
        if (own := self.axes.plans[study].lrs) is not None:
            return own
        rule = self.axes.lr_rule
        return self.lr_grid(study.optimizer) if rule is None else (rule.at(study.batch_size),)

    def lr_grid(self, optimizer: str) -> tuple[float, ...]:
        """Return the learning rates of ``optimizer``: as given, or by the rule at all batch sizes, or its own; a search
        starts at those of AdamW where only an external program knows the optimizer.

        Raises:
            ConfigError: if none are given and it has none of its own.
        """
        if self.axes.lr_rule is not None:
            return tuple(sorted(set(map(self.axes.lr_rule.at, self.axes.batch_sizes))))
        name = self.choices[optimizer].name
        theirs = self.trial.workload.name == COMMAND and name not in OPTIMIZERS
        grid = self.axes.lrs or OPTIMIZERS["adamw" if theirs else name].lr_grid
        if not grid:
            raise ConfigError(
                f"optimizer {optimizer!r} has no learning rates to start from: give --lrs, or a default lr, or an "
                "attribute lr_grid"
            )
        return grid

    def studies(self) -> list[StudyKey]:
        """Return the studies: every combination of optimizer and batch size, or those of the stages."""
        return list(self.axes.plans)

    def believes(self, study: StudyKey) -> bool:
        """Return whether other batch sizes may say where the best learning rate of a study lies: only if an analysis
        follows that doubts it where needed."""
        return bool(self.axes.staged) and not self.axes.plans[study].bracket and not self.budgets

    def budget(self, batch_size: int) -> int:
        """Return the largest number of updates that a trial at ``batch_size`` may take; with ``budgets`` the whole
        number of updates nearest to the largest budget."""
        if self.budgets:
            return max(1, round(self.budgets[-1] / batch_size))
        return self.max_steps + self.max_examples // batch_size

    def trial_at(self, cell: Cell, lr: float) -> TrialConfig:
        """Return the trial at one point of the grid: the prototype with what the axes, the start and the lengths set.

        Raises:
            ConfigError: if the target is not resolved or a value is out of its domain.
        """
        if self.target is None:
            raise ConfigError("the sweep has no target yet")
        schedule, evaluation = self.schedule.at(cell.batch_size), self.trial.evaluation
        parent = self.start.parent_of(cell.batch_size, lr)
        if self.budgets:
            growth = max(evaluation.growth, BUDGET_GROWTH)
            evaluation = dataclasses.replace(evaluation, growth=growth, far_growth=growth)
            if not self.shares_trials:
                before = 0 if parent is None else parent.examples
                schedule = dataclasses.replace(schedule, decay_examples=before + self.budgets[-1])
        optimizer, batch_schedule = self.axes.curves[cell.optimizer]
        return dataclasses.replace(
            self.trial,
            optimizer=optimizer,
            lr=lr,
            batch_size=cell.batch_size,
            seed=cell.seed,
            max_steps=self.budget(cell.batch_size),
            parent=parent,
            schedule=schedule,
            batch_schedule=batch_schedule,
            evaluation=evaluation,
            stops_at_target=not self.budgets,
        )

    def protocol(self) -> dict[str, Any]:
        """Return what all trials of the sweep share, as plain JSON values: the prototype without what the axes set.

        Trials with different protocols are not comparable.
        """
        data = plain_values(self.trial)
        for name in (*_SET_BY_AXES, *([] if self.trial.further_targets else ["further_targets"])):
            del data[name]
        if self.target is None:
            data["target"] = None
        if "schedule" not in self.trial.unknown:
            data["schedule"] = plain_values(self.schedule)
        if self.start.parent is not None and self.start.trunk is None:
            data["parent"] = plain_values(self.start.parent)
        lengths = {"max_steps": self.max_steps, "max_examples": self.max_examples, "prune_factor": self.prune_factor}
        return data | lengths | ({"stops_at_target": False} if self.budgets else {})

    @property
    def protocol_fingerprint(self) -> str:
        """16 hexadecimal digits that identify the protocol."""
        return fingerprint(self.protocol())


PART_OF: dict[str, str] = {
    field.name: part
    for part, kind in (("trial", TrialConfig), ("axes", Axes), ("search", SearchPlan), ("start", Start), ("", Sweep))
    for field in dataclasses.fields(kind)
}
"""The part of a sweep that holds a field, by the name of the field; empty for fields of the sweep itself, which come
first where the prototype has one of the same name."""
