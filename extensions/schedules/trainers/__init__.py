"""Formats of trainers for a batch-size schedule: one file each, found by name, which writes a schedule and reads it."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from analysis.formatting import number
from analysis.quantities import Quantity
from cbs.errors import ConfigError, reason
from cbs.registry import Registry
from cbs.registry.values import parse_table
from extensions.schedules.plan.plans import SchedulePlans


@dataclass(frozen=True, kw_only=True)
class ScheduleExport:
    """A schedule to write.

    Attributes:
        table: examples at which each stage begins, and its batch size in examples.
        steps: number of steps of each stage.
        examples: examples at which the run ends.
        tokens_per_example: tokens per example; ``None`` if examples have none.
        optimizer: name of the optimizer without options; empty if unknown.
        lr_factors: factor of each stage on the learning rate of the first stage.
    """

    table: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    examples: int
    tokens_per_example: int | None = None
    optimizer: str = ""
    lr_factors: tuple[Quantity, ...]

    @property
    def seen(self) -> int:
        """Examples of all steps, which is where a trainer ends that runs until at least this many are seen."""
        return sum(count * size for count, (_, size) in zip(self.steps, self.table, strict=True))


@dataclass(frozen=True, kw_only=True)
class ReadSchedule:
    """A schedule that was read from a text.

    Attributes:
        table: start of each stage and its batch size in examples; starts are in tokens if examples have tokens.
        end: end of the run in the same unit; ``None`` if the text does not give it.
    """

    table: tuple[tuple[int, int], ...]
    end: int | None = None


# What parsing a damaged text may raise
_UNREADABLE = (
    yaml.YAMLError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    NameError,
    RecursionError,
)


class TrainerFormat(ABC):
    """The format of one trainer. Raises ``ConfigError`` for what it cannot write or read.

    Attributes:
        mark: what a text in the format contains; empty if the format is only written.
        in_tokens: what the trainer counts in tokens, for the message if these are unknown.
        carries_lr: whether the format includes the learning rate.
    """

    mark: str = ""
    in_tokens: str = ""
    carries_lr: bool = False

    @abstractmethod
    def write(self, export: ScheduleExport) -> str:
        """Return the text that the trainer takes."""

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule:
        """Return the schedule in a text with the mark that :meth:`write` or a person wrote; an error of Python says
        that it is damaged."""
        raise NotImplementedError

    def tokens(self, per_example: int | None) -> int:
        """Return the tokens per example, without which this format cannot be written or read."""
        if per_example is None:
            raise ConfigError(f"{self.in_tokens}: give --tokens-per-example")
        return per_example

    def examples(self, tokens: int, per_example: int) -> int:
        """Return a batch size in examples."""
        if tokens % per_example:
            raise ConfigError(f"{tokens} tokens of {self.mark} are not a multiple of {per_example} tokens per example")
        return tokens // per_example


TRAINERS: Registry[type[TrainerFormat]] = Registry(
    "trainer", "extensions.schedules.trainers", derived_from=TrainerFormat
)


def exported(plans: SchedulePlans, trainer: str) -> tuple[str, list[str]]:
    """Return a plan as text in the format of a trainer, and remarks; raise ``ConfigError`` if there are several plans,
    the trainer is unknown, or it cannot run the plan."""
    if len(plans.plans) != 1:
        names = ", ".join(plan.source.optimizer for plan in plans.plans)
        raise ConfigError(f"--export takes one plan, and there are those of {names}: choose with --optimizer")
    (plan,) = plans.plans
    export = ScheduleExport(
        table=tuple(plan.table),
        steps=tuple(stage.steps for stage in plan.stages),
        examples=plan.budget,
        tokens_per_example=plan.source.tokens_per_example,
        optimizer=plan.source.optimizer.partition("(")[0],
        lr_factors=tuple(stage.lr_factor for stage in plan.stages),
    )
    text = write_schedule(trainer, export)
    notes = [plan.verdict, *plan.notes]
    factors = [stage.lr_factor.value for stage in plan.stages]
    if plan.stages[0].lr.value is not None:
        notes.append(f"learning rate of the first stage: {number(plan.stages[0].lr.value)}, {plan.lr_rule}")
    if not _named(trainer).carries_lr and None not in factors and set(factors) != {1.0}:
        pairs = zip(factors, plan.stages, strict=True)
        listed = ", ".join(f"{number(factor)} at {stage.batch_size}" for factor, stage in pairs)
        notes.append(f"{trainer} takes no factor of the learning rate with it; the plan's are {listed}")
    return text, notes


def write_schedule(trainer: str, export: ScheduleExport) -> str:
    """Return the schedule in the format of a trainer, see :meth:`TrainerFormat.write`."""
    return _named(trainer)().write(export)


def _named(trainer: str) -> type[TrainerFormat]:
    """Return the trainer of a name; ``olmo_core`` is accepted for ``olmo-core``."""
    return TRAINERS[trainer.replace("_", "-")]


def read_schedule(text: str, tokens_per_example: int | None = None) -> ReadSchedule:
    """Read a schedule in the format of any trainer, or a plain table ``0:768 250B:1536``."""
    for name in TRAINERS:
        trainer = TRAINERS[name]()
        if trainer.mark and trainer.mark in text:
            try:
                return _checked(trainer.read(text, tokens_per_example))
            except _UNREADABLE as error:
                raise ConfigError(f"{trainer.mark} of {name} cannot be read: {reason(error)}") from None
    return ReadSchedule(table=tuple(parse_table(text)))


def of_steps(
    places: Sequence[int], sizes: Sequence[int], end: int | None, tokens_per_example: int | None
) -> ReadSchedule:
    """Return the schedule of a trainer that counts ``places``, where the stages begin, and ``end`` in steps, and
    ``sizes`` in examples."""
    each, seen, table = tokens_per_example or 1, 0, []
    for size, start, later in zip(sizes, places, [*places[1:], end], strict=True):
        table.append((seen * each, size))
        seen += 0 if later is None else (later - start) * size
    return ReadSchedule(table=tuple(table), end=None if end is None else seen * each)


def _checked(schedule: ReadSchedule) -> ReadSchedule:
    """Return ``schedule`` if its stages are in order from 0 to its end; raise ``ConfigError`` otherwise."""
    starts = [start for start, _ in schedule.table]
    if not starts or starts[0] != 0 or any(later <= sooner for sooner, later in itertools.pairwise(starts)):
        raise ConfigError(f"the stages of a schedule begin at 0 and one after another, these at {starts}")
    if schedule.end is not None and schedule.end <= starts[-1]:
        raise ConfigError(f"the last stage begins at {starts[-1]:,} and the run ends at {schedule.end:,}, before it")
    if any(size < 1 for _, size in schedule.table):
        raise ConfigError("a batch holds 1 example or more")
    return schedule
