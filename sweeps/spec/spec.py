"""A sweep: its axes, what all its trials share, and the trials that follow from both. Knows nothing of Ray."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field
from typing import Any

from cbs.diagnostics import build_diagnostics
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.registry.choices import labels
from cbs.trial.config import (
    COMMAND,
    CONSTANT,
    Choice,
    EvaluationPlan,
    TrialConfig,
    clip_norm_or_none,
    fingerprint,
    plain_values,
    sorted_names,
)
from cbs.trial.parent import Parent
from cbs.trial.target import Target
from sweeps.spec.budgets import check_budget
from sweeps.spec.cell import Cell, StagedStudy, StudyKey, study_label
from sweeps.spec.lr_rule import PrescribedRate
from sweeps.spec.prior import Prior
from sweeps.spec.schedule_rule import ScheduleRule

SEARCHES = ("bracket", "grid")

BUDGET_GROWTH = 1.1
"""Smallest ratio of the steps of two evaluations in trials that end with their budget; the sweep's own is used if it is
larger. The whole curve of such a trial is read, by linear interpolation in ln steps."""

_NO_PROTOCOL = (
    *("name", "expected", "usual_precision", "metric"),
    *("optimizers", "tuned", "batch_schedules", "batch_sizes", "lrs", "lr_rule", "seeds", "budgets"),
    *("search", "lr_resolution", "warm_start", "judged_at", "judged_by", "within"),
    *("trunk", "keep", "staged"),
)
"""Fields that may differ between trials of one protocol: the axes, and what decides which trials are run."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid over optimizer x batch size x learning rate x seed, and what every trial of it shares.

    Attributes:
        name: name of the recipe it came from.
        workload: the workload.
        optimizers: optimizers with their options; one name may appear several times with different options.
        tuned: options of each optimizer, by its name, that are tuned at every batch size like the learning rate, see
            :mod:`sweeps.spec.axes`; choices that differ only in these options form one curve in an analysis.
        batch_schedules: batch-size schedules with their options, each combined with every optimizer; see
            :mod:`cbs.schedules.batch_size`.
        batch_sizes: batch sizes in examples, increasing.
        lrs: learning rates to try, all of them and no others; ``None`` for the optimizer's own.
        lr_rule: one learning rate for every batch size, instead of ``lrs`` and of a search.
        search: ``"bracket"`` starts at the middle of the learning rates of each optimizer and goes on until the best
            one has a worse one on either side; ``"grid"`` tries all of them on every seed, which is always done if
            ``lrs`` are given.
        lr_resolution: smallest ratio between two learning rates of a search.
        warm_start: learning rates at which the search starts, by the text of an optimizer, see
            :mod:`sweeps.search.warm_start`.
        seeds: seeds; every cell of the grid runs once per seed.
        metric: the metric of the target if it is not the workload's own: another metric of the workload, or one of
            :data:`cbs.training.metrics.METRICS`.
        target: target at which a trial stops; ``None`` takes the workload's own.
        further_targets: targets on other metrics, all of which a trial also has to reach before it stops. No trial is
            pruned then.
        max_steps: together with ``max_examples`` the largest number of updates that a trial may take to the target:
            ``max_steps + max_examples / batch_size``.
        max_examples: second part of the largest number of updates that a trial may take to the target, see
            ``max_steps``.
        budgets: numbers of examples after which the metric is read, instead of steps to a target: every trial sees that
            many, whatever it reaches. If the learning-rate schedule ends with the budget, each budget has its own
            trials; otherwise the trials of the largest budget serve all.
        judged_by: the metric of the target whose steps the learning-rate search minimises; ``None`` for that of
            ``target``.
        judged_at: the one of ``budgets`` at which the learning-rate search reads the metric; ``None`` for the largest.
        within: difference of the metric that matters, by which the search at equal budgets decides which learning rates
            are near the best; ``None`` for what a few percent of the data are worth.
        parent: the checkpoint from which every trial starts; ``None`` for fresh weights.
        trunk: batch size and learning rate of the run that wrote the checkpoint, if the trials are branches of it; they
            may share a folder with it and with branches of other checkpoints.
        keep: numbers of examples after which trials save a checkpoint for other trials to start from.
        staged: the studies of a sweep that grows, each with seeds of its own, in place of every combination of the
            axes, which hold all their values.
        schedule: learning-rate schedule; batch schedules are ``batch_schedules``.
        clip_norm: norm to which longer gradients are scaled down; ``None`` or 0 for never.
        averaging: average of the weights that is validated; ``None`` for the weights themselves.
        micro_batch_size: examples per forward and backward pass.
        prune_factor: a trial is stopped once it has passed this multiple of the best steps of its cell; ``None`` never.
        evaluation: when the validation metric is measured.
        metrics: further metrics that are measured at every evaluation.
        probe: how the noise scale of every step is measured; ``None`` for not at all.
        diagnostics: further quantities that are recorded at every step.
        diagnostics_every: number of steps from one recording of diagnostics to the next, starting with the first step.
        precision: ``"float32"`` or ``"bfloat16"``.
        compile: whether models go through ``torch.compile``.
        device: where models train.
        unknown: settings of an external training program that it did not report, see
            :class:`cbs.trial.config.TrialConfig`.
        expected: rough ``(min_steps, min_examples)`` of the workload at its target, for time estimates and for the
            batch sizes with which a sweep begins that finds them.
        usual_precision: half-width of the interval of ``ln B_crit`` to which such a sweep goes if none is requested.
    """

    name: str
    workload: Choice
    optimizers: tuple[Choice, ...]
    batch_sizes: tuple[int, ...]
    tuned: dict[str, list[str]] = field(default_factory=dict)
    batch_schedules: tuple[Choice, ...] = (Choice(name=CONSTANT),)
    lrs: tuple[float, ...] | None = None
    lr_rule: PrescribedRate | None = None
    search: str = "bracket"
    lr_resolution: float = 1.04
    warm_start: dict[str, Prior] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    metric: str | None = None
    target: Target | None = None
    further_targets: tuple[Target, ...] = ()
    judged_by: str | None = None
    max_steps: int = 2_000
    max_examples: int = 100_000
    budgets: tuple[int, ...] = ()
    judged_at: int | None = None
    within: float | None = None
    parent: Parent | None = None
    trunk: tuple[int, float] | None = None
    keep: tuple[int, ...] = ()
    staged: tuple[StagedStudy, ...] = ()
    schedule: ScheduleRule = field(default_factory=ScheduleRule)
    clip_norm: float | None = None
    averaging: Choice | None = None
    micro_batch_size: int | None = None
    prune_factor: float | None = 1.3
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
    metrics: tuple[str, ...] = ()
    probe: Choice | None = field(default_factory=lambda: Choice(name="auto"))
    diagnostics: tuple[str, ...] = ()
    diagnostics_every: int = 1
    precision: str = "float32"
    compile: bool = False
    device: str = "auto"
    unknown: tuple[str, ...] = ()
    expected: tuple[float, float] | None = None
    usual_precision: float = 0.2

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
            if axis not in ("optimizers", "batch_schedules"):
                object.__setattr__(self, axis, tuple(sorted(values)))
        for batch_size in self.batch_sizes:
            if not isinstance(batch_size, int) or batch_size < 1:
                raise ConfigError(f"batch sizes must be whole numbers of at least 1, got {batch_size}")
        for lr in self.lrs or ():
            if not (math.isfinite(lr) and lr > 0):
                raise ConfigError(f"learning rates must be finite and above 0, got {lr:g}")
        if self.search not in SEARCHES:
            raise ConfigError(f"unknown search {self.search!r}; known: {', '.join(SEARCHES)}")
        if not 1.01 < self.lr_resolution <= 2.0:
            raise ConfigError(f"lr_resolution must be above 1.01 and at most 2, got {self.lr_resolution:g}")
        if self.prune_factor is not None and not self.prune_factor > 1.0:
            raise ConfigError(f"prune_factor must exceed 1, got {self.prune_factor}; 'none' turns pruning off")
        if self.lr_rule is not None:
            if self.lrs is not None:
                raise ConfigError("--lrs are tried at every batch size, --lr-rule gives one for each: leave one out")
            for batch_size in self.batch_sizes:
                self.lr_rule.at(batch_size)
        if self.further_targets:
            object.__setattr__(self, "prune_factor", None)
        if self.within is not None and not (isinstance(self.within, int | float) and 0 < self.within < math.inf):
            raise ConfigError(f"within, a difference of the metric, must be above 0, got {self.within}")
        if self.budgets:
            if self.further_targets:
                raise ConfigError("with --budget trials stop at no target: leave out --set target.METRIC")
            object.__setattr__(self, "budgets", tuple(sorted(self.budgets)))
            object.__setattr__(self, "prune_factor", None)
            continued = self.parent is not None and bool(self.parent.examples)
            check_budget(self.budgets[0], self.batch_sizes[-1], None if continued else self.schedule)
        object.__setattr__(self, "clip_norm", clip_norm_or_none(self.clip_norm))
        object.__setattr__(self, "metrics", sorted_names("metrics", self.metrics))
        object.__setattr__(self, "diagnostics", sorted_names("diagnostics", self.diagnostics))
        build_diagnostics(self.diagnostics, compiled=self.compile)
        if not isinstance(self.diagnostics_every, int) or self.diagnostics_every < 1:
            raise ConfigError(f"diagnostics_every must be a whole number of at least 1, got {self.diagnostics_every}")
        if self.max_steps < 1 or self.max_examples < 0:
            raise ConfigError(
                f"the budget must be positive, got max_steps={self.max_steps}, max_examples={self.max_examples}"
            )

    @functools.cached_property
    def parts(self) -> list[Sweep]:
        """The sweeps with one search each into which this one divides.

        With budgets there is one for every budget, the one whose trials serve the others first; with further targets
        one for every target; otherwise it is the sweep itself.
        """
        if self.further_targets and self.judged_by is None:
            return [self, *(self.replace(judged_by=target.metric) for target in self.further_targets)]
        if not self.budgets:
            return [self]
        if self.shares_trials:
            return [self.replace(judged_at=budget) for budget in reversed(self.budgets)]
        return [self.replace(budgets=(budget,)) for budget in self.budgets]

    @functools.cached_property
    def shares_trials(self) -> bool:
        """Whether the trials of the first part serve all others: there are several targets, or the schedule does not
        end with the budget."""
        return bool(self.further_targets) or (bool(self.budgets) and not self.schedule.ends_with(self.budgets[-1]))

    @property
    def aim(self) -> str:
        """All targets in words."""
        return " and ".join(map(str, [self.target, *self.further_targets]))

    @property
    def judged(self) -> Target | None:
        """The target whose steps the search minimises."""
        return next((target for target in self.further_targets if target.metric == self.judged_by), self.target)

    @property
    def unmet(self) -> dict[int, int]:
        """Number of examples that trials see, by batch size, where the largest budget is not a whole number of
        batches."""
        met = {size: size * self.budget(size) for size in self.batch_sizes} if self.budgets else {}
        return {size: examples for size, examples in met.items() if examples != self.budgets[-1]}

    @property
    def budget_judged(self) -> int | None:
        """Number of examples at which the metric is read; ``None`` if trials run to the target."""
        return self.judged_at or (self.budgets[-1] if self.budgets else None)

    def replace(self, **changes: Any) -> Sweep:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def on(self, workload: str) -> Sweep:
        """Return the sweep on another workload with that workload's own target; unchanged if it is the same
        workload."""
        if workload == self.workload.name:
            return self
        return self.replace(workload=Choice(name=workload), target=None, expected=None)

    @functools.cached_property
    def choices(self) -> dict[str, Choice]:
        """The optimizers by their text under every batch schedule, which is the key in studies and cells."""
        return {study_label(choice, schedule): choice for choice, schedule in self._pairs}

    @functools.cached_property
    def labels(self) -> dict[str, str]:
        """Names for display by the same keys: the optimizer's name with what distinguishes its variants."""
        optimizers = dict(zip(map(str, self.optimizers), labels(self.optimizers), strict=True))
        schedules = dict(zip(map(str, self.batch_schedules), labels(self.batch_schedules), strict=True))
        return {
            study_label(choice, schedule): f"{optimizers[str(choice)]}, {schedules[str(schedule)]}"
            if schedule
            else optimizers[str(choice)]
            for choice, schedule in self._pairs
        }

    @property
    def _pairs(self) -> list[tuple[Choice, Choice | None]]:
        schedules = [None if schedule == Choice(name=CONSTANT) else schedule for schedule in self.batch_schedules]
        return [(choice, schedule) for choice in self.optimizers for schedule in schedules]

    @property
    def exhaustive(self) -> bool:
        """Whether every learning rate of a list is tried on every seed."""
        return self.search != "bracket" or self.lrs is not None or self.lr_rule is not None

    def listed_lrs(self, study: StudyKey) -> tuple[float, ...]:
        """Return the learning rates of a study that is not searched."""
        if (own := self._plans[study].lrs) is not None:
            return own
        return self.lr_grid(study.optimizer) if self.lr_rule is None else (self.lr_rule.at(study.batch_size),)

    def lr_grid(self, optimizer: str) -> tuple[float, ...]:
        """Return the learning rates of ``optimizer``: as given, or by the rule at all batch sizes, or its own; a search
        starts at those of AdamW where only an external program knows the optimizer.

        Raises:
            ConfigError: if none are given and it has none of its own.
        """
        if self.lr_rule is not None:
            return tuple(sorted(set(map(self.lr_rule.at, self.batch_sizes))))
        name = self.choices[optimizer].name
        theirs = self.workload.name == COMMAND and name not in OPTIMIZERS
        grid = self.lrs or OPTIMIZERS["adamw" if theirs else name].lr_grid
        if not grid:
            raise ConfigError(
                f"optimizer {optimizer!r} has no learning rates to start from: give --lrs, or a default lr, or an "
                "attribute lr_grid"
            )
        return grid

    def studies(self) -> list[StudyKey]:
        """Return the studies: every combination of optimizer and batch size, or those of the stages."""
        return list(self._plans)

    def seeds_of(self, study: StudyKey) -> tuple[int, ...]:
        """Return the seeds of a study, increasing."""
        return self._plans[study].seeds

    def believes(self, study: StudyKey) -> bool:
        """Return whether other batch sizes may say where the best learning rate of a study lies: only if an analysis
        follows that doubts it where needed."""
        return bool(self.staged) and not self._plans[study].bracket and not self.budgets

    def stage_of(self, study: StudyKey) -> int:
        """Return the stage in which a study was first asked for."""
        return self._plans[study].stage

    @functools.cached_property
    def _plans(self) -> dict[StudyKey, StagedStudy]:
        if self.staged:
            order = {optimizer: place for place, optimizer in enumerate(self.choices)}
            return {
                plan.study: plan
                for plan in sorted(self.staged, key=lambda plan: (order[plan.study.optimizer], plan.study.batch_size))
            }
        keys = [StudyKey(optimizer, batch_size) for optimizer in self.choices for batch_size in self.batch_sizes]
        return {study: StagedStudy(study, 0, self.seeds) for study in keys}

    def budget(self, batch_size: int) -> int:
        """Return the largest number of updates that a trial at ``batch_size`` may take; with ``budgets`` the whole
        number of updates nearest to the largest budget."""
        if self.budgets:
            return max(1, round(self.budgets[-1] / batch_size))
        return self.max_steps + self.max_examples // batch_size

    def trial(self, cell: Cell, lr: float) -> TrialConfig:
        """Return the trial at one point of the grid.

        Raises:
            ConfigError: if the target is not resolved or a value is out of its domain.
        """
        if self.target is None:
            raise ConfigError("the sweep has no target yet")
        schedule, evaluation = self.schedule.at(cell.batch_size), self.evaluation
        if self.budgets:
            growth = max(evaluation.growth, BUDGET_GROWTH)
            evaluation = dataclasses.replace(evaluation, growth=growth, far_growth=growth)
            if not self.shares_trials:
                before = 0 if self.parent is None else self.parent.examples
                schedule = dataclasses.replace(schedule, decay_examples=before + self.budgets[-1])
        parent = self.parent
        if parent is not None and self.trunk is not None:
            size, rate = self.trunk
            parent = dataclasses.replace(parent, batch_factor=cell.batch_size / size, lr_factor=lr / rate)
        return TrialConfig(
            workload=self.workload,
            optimizer=self.choices[cell.optimizer],
            lr=lr,
            batch_size=cell.batch_size,
            seed=cell.seed,
            target=self.target,
            further_targets=self.further_targets,
            max_steps=self.budget(cell.batch_size),
            parent=parent,
            micro_batch_size=self.micro_batch_size,
            schedule=schedule,
            batch_schedule=dict(zip(self.choices, (schedule for _, schedule in self._pairs), strict=True))[
                cell.optimizer
            ],
            clip_norm=self.clip_norm,
            averaging=self.averaging,
            evaluation=evaluation,
            stops_at_target=not self.budgets,
            metrics=self.metrics,
            probe=self.probe,
            diagnostics=self.diagnostics,
            diagnostics_every=self.diagnostics_every,
            precision=self.precision,  # type: ignore[arg-type]
            compile=self.compile,
            device=self.device,  # type: ignore[arg-type]
            unknown=self.unknown,
        )

    def axes(self) -> dict[str, Any]:
        """Return the axes of the sweep as plain JSON values."""
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

    def protocol(self) -> dict[str, Any]:
        """Return what all trials of the sweep share, as plain JSON values.

        Trials with different protocols are not comparable.
        """
        data = plain_values(self)
        for name in (*_NO_PROTOCOL, *(["parent"] if self.parent is None or self.trunk is not None else [])):
            del data[name]
        if not self.further_targets:
            del data["further_targets"]
        return data | ({"stops_at_target": False} if self.budgets else {})

    @property
    def protocol_fingerprint(self) -> str:
        """16 hexadecimal digits that identify the protocol."""
        return fingerprint(self.protocol())
