"""What is asked of a plan, and what it says."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from analysis.arrays import UNKNOWN, Quantity
from analysis.estimate.findings import Findings
from analysis.extensions.schedule_plan.source import PhaseSource
from analysis.plain import plain, shown
from analysis.read.throughput import Throughput
from cbs.errors import ConfigError

RULES = ("price", "doubling")
"""How batch sizes are chosen, see :mod:`analysis.extensions.schedule_plan.answer`."""

LAW = "measured law"
"""The rule of the learning rate that takes that of the constant runs of each batch size."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What a plan has to satisfy.

    Attributes:
        rule: one of :data:`RULES`.
        price: examples that one step less is worth; ``None`` for the time of a step where that is known, else for as
            many as the critical batch size has.
        first_batch_size: of rule ``doubling``, where it starts.
        divisible_by: every batch size is a multiple of it; ``None`` for what the source was measured in.
        lr_exponent: the learning rate goes with this power of the batch size, or by :data:`LAW`; ``None`` for what is
            known to be best.
        budget: examples at which the run ends; ``None`` for the end of the last phase.
    """

    rule: str = "price"
    price: float | None = None
    throughput: Throughput | None = None
    devices: int = 1
    divisible_by: int | None = None
    max_batch_size: int | None = None
    first_batch_size: int | None = None
    lr_exponent: float | str | None = None
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"--rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        for name in ("devices", "divisible_by", "max_batch_size", "first_batch_size", "budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.price is not None and not (math.isfinite(self.price) and self.price > 0):
            raise ConfigError(f"--price must be above 0 examples per step, got {self.price:g}")
        given = self.lr_exponent
        if given is not None and given != LAW and not (isinstance(given, float) and -1.0 <= given <= 1.0):
            raise ConfigError(f"--lr-exponent must be law, or a number between -1 and 1, got {given}")
        if (self.rule == "doubling") != (self.first_batch_size is not None):
            raise ConfigError("--rule doubling and --first-batch-size go together")
        if self.rule == "doubling" and self.price is not None:
            raise ConfigError("--price belongs to --rule price")
        for name in ("first_batch_size", "max_batch_size"):
            value = getattr(self, name)
            if value is not None and self.divisible_by and value % self.divisible_by:
                raise ConfigError(
                    f"--{name.replace('_', '-')} {value} is no multiple of {self.divisible_by}, as sizes have to be"
                )


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One stage.

    Attributes:
        steps: in it, within the budget.
        lr_factor: on the learning rate of the first stage; no value where nothing says it.
        lr: that makes; no value where the best learning rate is not known.
    """

    start: int
    batch_size: int
    steps: int
    until: str
    critical: Quantity
    lr_factor: Quantity
    lr: Quantity


@dataclass(frozen=True, kw_only=True)
class PlanOutcome:
    """What a choice of batch sizes takes to the end of the last phase under one rule of the learning rate.

    Steps and all that follows from them have no values where nothing says them, see
    :mod:`analysis.extensions.schedule_plan.outcome`.

    Attributes:
        lrs: of every stage; no values where they are not known.
        hours: likewise; no value where step times are not known.
        examples_saved: share of the examples of the constant batch size that takes as many steps.
        recommended: whether it is the rule of the plan.
    """

    name: str
    batch_sizes: tuple[int, ...]
    lrs: tuple[float | None, ...]
    steps: Quantity
    examples: Quantity
    hours: Quantity = UNKNOWN
    examples_saved: Quantity = UNKNOWN
    recommended: bool = False


@dataclass(frozen=True, kw_only=True)
class SchedulePlan:
    """A plan for one optimizer.

    Attributes:
        decided_by: the rule and its numbers, in words.
        phase_ends: examples at which the phases end, by the estimate.
        lr_rule: of the learning rate; empty where nothing says one.
        outcomes: under every rule of the learning rate, then of the best constant batch size.
        notes: reasons to doubt it.
    """

    source: PhaseSource = field(repr=False)
    ask: PlanRequest = field(repr=False)
    decided_by: str
    budget: int
    stages: tuple[PlannedStage, ...]
    phase_ends: tuple[float, ...]
    lr_rule: str
    outcomes: tuple[PlanOutcome, ...]
    verdict: str
    notes: tuple[str, ...]

    @property
    def table(self) -> list[tuple[int, int]]:
        """Examples at which each stage begins, and its batch size."""
        return [(stage.start, stage.batch_size) for stage in self.stages]

    def to_json(self) -> dict[str, Any]:
        source = self.source
        about = {name: getattr(source, name) for name in ("what", "optimizer", "example_unit", "tokens_per_example")}
        phases = [shown(phase) for phase in source.phases]
        return about | {"phases": phases} | shown(self)


@dataclass(frozen=True, kw_only=True)
class SchedulePlans(Findings):
    """What :func:`~analysis.extensions.schedule_plan.answer.plan_schedule` found, one plan per optimizer; ``timing``
    says where step times are from."""

    plans: tuple[SchedulePlan, ...] = field(repr=False)
    timing: str = ""

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"plans": plain(self.plans)}
