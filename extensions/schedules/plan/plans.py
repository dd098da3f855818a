"""Requests for a plan, and the plan itself."""

import math
from dataclasses import dataclass, field
from typing import Any

from analysis.formatting import plain, shown
from analysis.present.findings import Findings
from analysis.quantities import UNKNOWN, Quantity
from analysis.read.throughput import Throughput
from cbs.errors import ConfigError
from cbs.registry.choices import parse_choice
from extensions.schedules.plan.phases import PhaseSource

RULES = {"price": ("step_price", "price"), "doubling": ("first_batch_size", "first_batch_size")}
"""Rules for choosing batch sizes, see :mod:`extensions.schedules.plan.planning`: the option of each as it is typed, and
the attribute of :class:`PlanRequest` that it sets."""

LAW = "measured law"
"""Name of the learning-rate rule that uses the best learning rate of constant runs at each batch size."""


def rule_of(text: str) -> dict[str, Any]:
    """Return a rule as it is typed as attributes of :class:`PlanRequest`.

    Raises:
        ConfigError: if there is no such rule, or it has no such option.

    Example:
        >>> rule_of("doubling(first_batch_size=64)")
        {'rule': 'doubling', 'first_batch_size': 64}
    """
    choice = parse_choice(text)
    if choice.name not in RULES:
        raise ConfigError(f"--rule must be one of {', '.join(RULES)}, got {choice.name!r}")
    option, attribute = RULES[choice.name]
    for name, value in choice.options.items():
        if name != option or type(value) not in (int, float):
            raise ConfigError(f"--rule {text}: it takes {option}=NUMBER and nothing else")
    return {"rule": choice.name, **({attribute: choice.options[option]} if choice.options else {})}


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Requirements of a plan.

    Attributes:
        rule: one of :data:`RULES`.
        price: number of examples that saving one step is worth; ``None`` to minimise time if step times are known,
            otherwise as many examples as the critical batch size.
        throughput: step times, if known.
        devices: number of devices that share a step.
        divisible_by: number of which every batch size is a multiple; ``None`` for that of the source's measurements.
        max_batch_size: largest batch size.
        first_batch_size: batch size from which the rule ``doubling`` starts.
        lr_exponent: power of the batch size to which the learning rate is proportional, or :data:`LAW`; ``None`` for
            what is known to be best.
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
            if value is not None and (value < 1 or value != int(value)):
                raise ConfigError(f"{_asked_as(name)} must be a whole number of at least 1, got {value:g}")
        if self.price is not None and not (math.isfinite(self.price) and self.price > 0):
            raise ConfigError(f"step_price of --rule price must be above 0 examples per step, got {self.price:g}")
        given = self.lr_exponent
        if given is not None and given != LAW and not (isinstance(given, float) and -1.0 <= given <= 1.0):
            raise ConfigError(f"--lr-exponent must be law, or a number between -1 and 1, got {given}")
        if (self.rule == "doubling") != (self.first_batch_size is not None):
            raise ConfigError("--rule doubling starts from a batch size: --rule 'doubling(first_batch_size=64)'")
        for name in ("first_batch_size", "max_batch_size"):
            value = getattr(self, name)
            if value is not None and self.divisible_by and value % self.divisible_by:
                raise ConfigError(
                    f"{_asked_as(name)}: {value} is not a multiple of {self.divisible_by}, as sizes have to be"
                )


def _asked_as(name: str) -> str:
    return f"{name} of --rule doubling" if name == "first_batch_size" else f"--{name.replace('_', '-')}"


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One stage of a plan.

    Attributes:
        start: examples at which it begins.
        batch_size: its batch size.
        steps: number of steps within the budget.
        until: where it ends, in words.
        critical: critical batch size of its phase.
        lr_factor: factor on the learning rate of the first stage; no value if unknown.
        lr: resulting learning rate; no value if the best learning rate is unknown.
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
    """Predicted cost of a choice of batch sizes up to the end of the last phase, under one rule of the learning rate.

    Steps and everything that follows from them have no values if they cannot be predicted, see
    :mod:`extensions.schedules.plan.outcome`.

    Attributes:
        name: name of the choice.
        batch_sizes: batch size of every stage.
        lrs: learning rate of every stage; no values if unknown.
        steps, examples: number of steps and examples.
        hours: hours; no value if step times are unknown.
        examples_saved: fraction of examples saved against the constant batch size that takes equally many steps.
        recommended: whether this is the rule of the plan.
    """

    name: str
    batch_sizes: tuple[int, ...]
    lrs: tuple[float | None, ...]
    steps: Quantity = UNKNOWN
    examples: Quantity = UNKNOWN
    hours: Quantity = UNKNOWN
    examples_saved: Quantity = UNKNOWN
    recommended: bool = False


@dataclass(frozen=True, kw_only=True)
class SchedulePlan:
    """A plan for one optimizer.

    Attributes:
        source: the phases that it is based on.
        ask: its requirements.
        decided_by: the rule and its numbers, in words.
        budget: examples at which the run ends.
        stages: the stages.
        phase_ends: examples at which the phases end, by the estimate.
        lr_rule: rule of the learning rate; empty if there is none.
        outcomes: outcomes under every rule of the learning rate, then of the best constant batch size.
        verdict: whether the plan gains anything.
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
    """Result of :func:`~extensions.schedules.plan.planning.plan_schedule`, with one plan per optimizer;
    ``timing`` says where step times come from, ``folder`` is that of the results, if they are a sweep."""

    plans: tuple[SchedulePlan, ...] = field(repr=False)
    timing: str = ""
    folder: str = field(default="", repr=False)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"plans": plain(self.plans)}
