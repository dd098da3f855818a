"""How trainers write a batch-size schedule: one file each, found by name, which writes one and reads it back."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.arrays import Quantity
from cbs.errors import ConfigError
from cbs.registry import Registry
from cbs.schedules.batch_size.text import parse_table


@dataclass(frozen=True, kw_only=True)
class ScheduleExport:
    """A schedule to be written.

    Attributes:
        table: examples at which each stage begins, and its batch size in examples.
        steps: in each.
        examples: where the run ends.
        tokens_per_example: ``None`` where that means nothing.
        optimizer: its name, without options; empty where nobody said it.
        lr_factors: on the learning rate of the first stage, of each.
    """

    table: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    examples: int
    tokens_per_example: int | None = None
    optimizer: str = ""
    lr_factors: tuple[Quantity, ...]

    @property
    def seen(self) -> int:
        """Examples of all steps: where a trainer ends that goes on until so many are seen, or more."""
        return sum(count * size for count, (_, size) in zip(self.steps, self.table, strict=True))


@dataclass(frozen=True, kw_only=True)
class ReadSchedule:
    """A schedule that was read from a text.

    Attributes:
        table: where each stage begins and its batch size in examples; in tokens where an example has them.
        end: where the run ends, likewise; ``None`` where the text does not say it.
    """

    table: tuple[tuple[int, int], ...]
    end: int | None = None


class TrainerFormat(ABC):
    """One trainer's way to write a schedule. What it cannot write or read it refuses with a ``ConfigError``.

    Attributes:
        carries_lr: whether the learning rate follows in it.
    """

    carries_lr: bool = False

    @abstractmethod
    def write(self, export: ScheduleExport) -> str:
        """The text that the trainer takes."""

    def read(self, text: str, tokens_per_example: int | None) -> ReadSchedule | None:
        """What :meth:`write` wrote, or a person did; ``None`` if the text is of another kind."""
        return None


TRAINERS: Registry[type[TrainerFormat]] = Registry(
    "trainer", "analysis.extensions.schedule_plan.trainers", derived_from=TrainerFormat
)


def write_schedule(trainer: str, export: ScheduleExport) -> str:
    """The schedule as a trainer takes it, see :meth:`TrainerFormat.write`."""
    return trainer_named(trainer)().write(export)


def trainer_named(name: str) -> type[TrainerFormat]:
    """The trainer of that name; ``olmo_core`` is ``olmo-core``, too."""
    return TRAINERS[name.replace("_", "-")]


def read_schedule(text: str, tokens_per_example: int | None = None) -> ReadSchedule:
    """A schedule as any of the trainers has it, or a bare table ``0:768 250B:1536``."""
    for name in TRAINERS:
        schedule = TRAINERS[name]().read(text, tokens_per_example)
        if schedule is not None:
            return checked(schedule)
    return ReadSchedule(table=tuple(parse_table(text)))


def of_steps(
    places: Sequence[int], sizes: Sequence[int], end: int | None, tokens_per_example: int | None
) -> ReadSchedule:
    """The schedule of a trainer that counts in steps.

    Args:
        places: steps at which the stages begin.
        sizes: examples per step.
        end: steps of the run; ``None`` where the text does not say it.
        tokens_per_example: where there are tokens.
    """
    each, seen, table = tokens_per_example or 1, 0, []
    for size, start, later in zip(sizes, places, [*places[1:], end], strict=True):
        table.append((seen * each, size))
        seen += 0 if later is None else (later - start) * size
    return ReadSchedule(table=tuple(table), end=None if end is None else seen * each)


def checked(schedule: ReadSchedule) -> ReadSchedule:
    """``schedule``, if its stages follow one another from 0 to its end."""
    starts = [start for start, _ in schedule.table]
    if not starts or starts[0] != 0 or any(later <= sooner for sooner, later in itertools.pairwise(starts)):
        raise ConfigError(f"the stages of a schedule begin at 0 and one after another, these at {starts}")
    if schedule.end is not None and schedule.end <= starts[-1]:
        raise ConfigError(f"the last stage begins at {starts[-1]:,} and the run ends at {schedule.end:,}, before it")
    if any(size < 1 for _, size in schedule.table):
        raise ConfigError("a batch holds 1 example or more")
    return schedule
