"""How trainers write a batch-size schedule: one file each, found by name, which writes one and reads it back.

A trainer that has no such thing says so instead of a key that nobody reads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from analysis.arrays import Quantity
from cbs.batch_schedules.text import parse_table
from cbs.errors import ConfigError
from cbs.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is written.

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


@dataclass(frozen=True, kw_only=True)
class Read:
    """What stands in a text.

    Attributes:
        table: where each stage begins and its batch size in examples; in tokens where an example has them.
        end: where the run ends, likewise; ``None`` where the text does not say it.
    """

    table: tuple[tuple[int, int], ...]
    end: int | None = None


class Trainer:
    """One trainer's way to write a schedule. What it cannot write or read it refuses with a ``ConfigError``.

    Attributes:
        carries_lr: whether the learning rate follows in it.
        refusal: why it has no schedules at all, and what to do instead.
    """

    carries_lr: bool = False
    refusal: str

    def write(self, told: Told) -> str:
        """The text that the trainer takes."""
        raise ConfigError(self.refusal)

    def read(self, text: str, tokens_per_example: int | None) -> Read | None:
        """What :meth:`write` wrote, or a person did; ``None`` if the text is of another kind."""
        return None


TRAINERS: Registry[type[Trainer]] = Registry("trainer", "analysis.read.trainers")


def write_schedule(trainer: str, told: Told) -> str:
    """The schedule as a trainer takes it, see :meth:`Trainer.write`."""
    return TRAINERS[trainer.replace("-", "_")]().write(told)


def read_schedule(text: str, tokens_per_example: int | None = None) -> Read:
    """A schedule as any of the trainers has it, or a bare table ``0:768 250B:1536``."""
    for name in TRAINERS:
        found = TRAINERS[name]().read(text, tokens_per_example)
        if found is not None:
            return checked(found)
    return Read(table=tuple(parse_table(text)))


def checked(found: Read) -> Read:
    """``found``, if its stages follow one another from 0."""
    starts = [start for start, _ in found.table]
    if not starts or starts[0] != 0 or any(later <= sooner for sooner, later in itertools.pairwise(starts)):
        raise ConfigError(f"the stages of a schedule begin at 0 and one after another, these at {starts}")
    if any(size < 1 for _, size in found.table):
        raise ConfigError("a batch holds 1 example or more")
    return found
