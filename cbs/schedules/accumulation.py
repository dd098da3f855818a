"""Batch sizes in whole micro-batches on all ranks, and what a closed-loop rule makes of a look at the noise scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice
from cbs.registry.domains import whole
from cbs.schedules.batch_size import ClosedLoop, RunSettings, Stage, batch_schedule_options, build_batch_schedule
from cbs.schedules.batch_size.base import GRAD_SQ_NORM, Observed, joined
from cbs.trial.config import Schedule

AS_SET = 0.1
"""The mean batch of the measured steps may differ by this share from the batch size set: the last step of an epoch is
often a smaller one."""

_ENDLESS = 1 << 62
"""Examples of a run that says of no budget; rules that look at the run do not ask for it."""


@dataclass(frozen=True, kw_only=True)
class NoiseReading:
    """What was seen, and where; :meth:`AccumulationPlan.decide` needs nothing else.

    Attributes:
        step, examples: of the run so far.
        batch_size, lr_factor: in force.
        measured: steps since the look before that count.
        taken: mean examples of these steps; ``None`` where none was measured.
        low, value, high: the noise scale in examples, with its interval; ``None`` where an end is open, or undefined.
        note: of the estimate.
    """

    step: int
    examples: int
    batch_size: int
    lr_factor: float
    measured: int
    taken: float | None
    low: float | None
    value: float | None
    high: float | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class AccumulationPlan:
    """How a run cuts its batches, and the rule that makes them grow.

    Attributes:
        rule: a closed-loop one of :mod:`cbs.schedules.batch_size` with its options, as ``"norm_test(theta=0.5)"``.
        micro_batch_size: examples of a forward and backward pass on one rank.
        micro_batches: of a step at first, on every rank.
        world_size: ranks that average their gradients.
        cap: largest batch size in examples.
        warmup_examples: there is no look before.

    Raises:
        ConfigError: if a value is out of its domain, or the rule does not look at the noise scale.
    """

    rule: str
    micro_batch_size: int
    micro_batches: int
    world_size: int
    cap: int
    warmup_examples: int = 0

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "micro_batches", "world_size"):
            whole(name, getattr(self, name))
        whole("warmup_examples", self.warmup_examples, least=0)
        whole("cap", self.cap, least=self.first, what="the batch size at first")
        _ = self.schedule

    @property
    def unit(self) -> int:
        """Examples of one micro-batch on every rank: batch sizes are multiples of it."""
        return self.micro_batch_size * self.world_size

    @property
    def first(self) -> int:
        """Batch size of the first step."""
        return self.unit * self.micro_batches

    @cached_property
    def schedule(self) -> ClosedLoop:
        """The batch-size schedule of the rule."""
        choice = parse_choice(self.rule)
        if "cap" in choice.options:
            raise ConfigError(f"the rule {self.rule!r} has a cap of its own; leave it out, cap= is the one that counts")
        run = RunSettings(
            batch_size=self.first, examples=_ENDLESS, lr_schedule=Schedule(warmup_examples=self.warmup_examples)
        )
        cap = {"cap": self.cap} if "cap" in batch_schedule_options(choice.name) else {}
        schedule = build_batch_schedule(Choice(name=choice.name, options=choice.options | cap), run)
        if not isinstance(schedule, ClosedLoop) or schedule.looks_at == GRAD_SQ_NORM:
            raise ConfigError(
                f"batch schedule {choice.name!r} does not look at the noise scale; take doubling, norm_test, "
                "dual_norm or noise_rule"
            )
        return schedule

    def as_set(self, look: NoiseReading) -> bool:
        """Whether the steps held the batch size that was set."""
        return look.taken is not None and abs(look.taken / look.batch_size - 1.0) <= AS_SET

    def decide(self, look: NoiseReading) -> Stage:
        """The stage of the coming steps: never smaller, whole micro-batches, and no more than the rule asks for.

        Nothing changes where the steps did not hold the batch size that was set.
        """
        now = Stage(look.batch_size, look.lr_factor)
        if not self.as_set(look):
            return now
        seen = Observed(stage=now, low=look.low, value=look.value, high=look.high)
        asked = self.schedule.decide(look.examples, seen)
        size = min(asked.batch_size, self.cap) // self.unit * self.unit
        if size <= now.batch_size:
            return now
        if size == asked.batch_size:
            return asked
        # the rule's learning rate is a power of its batch size
        power = math.log(asked.lr_factor) / math.log(asked.batch_size / self.first)
        return Stage(size, joined([size], self.first, power)[0])


def replay(rows: Iterable[Mapping[str, Any]]) -> list[tuple[NoiseReading, Stage]]:
    """The looks of a log and what is decided on each, from the settings in its first row and what was seen.

    Args:
        rows: of :attr:`cbs.BatchSizeController.rows`, or the lines of its file.

    Raises:
        ConfigError: if they are none.
    """
    try:
        settings, *seen = rows
        accumulation = AccumulationPlan(**settings)
        looks = [NoiseReading(**{name: row[name] for name in NoiseReading.__dataclass_fields__}) for row in seen]
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"not the log of a BatchSizeController: {type(error).__name__}: {error}") from None
    return [(look, accumulation.decide(look)) for look in looks]


def row_of(look: NoiseReading, after: Stage) -> dict[str, Any]:
    """A row of the log: the look and what was decided."""
    return asdict(look) | {"next_batch_size": after.batch_size, "next_lr_factor": after.lr_factor}
