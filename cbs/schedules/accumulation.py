"""Batch sizes in whole micro-batches on all ranks, and the decision of a closed-loop rule from a noise-scale
reading.
"""

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
"""Largest relative difference between the mean batch of the measured steps and the batch size that was set; the last
step of an epoch is often a smaller one."""

_ENDLESS = 1 << 62
"""Number of examples of a run without a budget; rules that observe the run do not use it."""


@dataclass(frozen=True, kw_only=True)
class NoiseReading:
    """One observation of the noise scale, with everything that :meth:`AccumulationPlan.decide` needs.

    Attributes:
        step, examples: steps and examples of the run so far.
        batch_size, lr_factor: current values.
        measured: number of measured steps since the previous reading.
        taken: mean number of examples in these steps; ``None`` where none was measured.
        low, value, high: the noise scale in examples, with its interval; ``None`` for an open end or an undefined
            value.
        note: note of the estimate.
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
    """How a run divides its batches into micro-batches, and the rule that makes the batches grow.

    Attributes:
        rule: a closed-loop rule of :mod:`cbs.schedules.batch_size` with its options, as ``"norm_test(theta=0.5)"``.
        micro_batch_size: number of examples in a forward and backward pass on one rank.
        micro_batches: number of micro-batches in the first step, on every rank.
        world_size: number of ranks that average their gradients.
        cap: largest batch size in examples.
        warmup_examples: length of the warmup, during which the rule does not observe.

    Raises:
        ConfigError: if a value is invalid, or the rule does not observe the noise scale.
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
        """Number of examples in one micro-batch on every rank, over all ranks: batch sizes are multiples of it."""
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
            raise ConfigError(f"the rule {self.rule!r} has a cap of its own; leave it out and use the argument cap=")
        run = RunSettings(
            batch_size=self.first, examples=_ENDLESS, lr_schedule=Schedule(warmup_examples=self.warmup_examples)
        )
        cap = {"cap": self.cap} if "cap" in batch_schedule_options(choice.name) else {}
        schedule = build_batch_schedule(Choice(name=choice.name, options=choice.options | cap), run)
        if not isinstance(schedule, ClosedLoop) or schedule.looks_at == GRAD_SQ_NORM:
            raise ConfigError(
                f"batch schedule {choice.name!r} does not observe the noise scale; use doubling, norm_test, "
                "dual_norm or noise_rule"
            )
        return schedule

    def as_set(self, look: NoiseReading) -> bool:
        """Whether the measured steps had the batch size that was set."""
        return look.taken is not None and abs(look.taken / look.batch_size - 1.0) <= AS_SET

    def decide(self, look: NoiseReading) -> Stage:
        """Return the stage of the next steps: never smaller, in whole micro-batches, and no larger than the rule
        requests.

        Nothing changes where the steps did not have the batch size that was set.
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
        # The rule's factor of the learning rate is a power of its batch size.
        power = math.log(asked.lr_factor) / math.log(asked.batch_size / self.first)
        return Stage(size, joined([size], self.first, power)[0])


def replay(rows: Iterable[Mapping[str, Any]]) -> list[tuple[NoiseReading, Stage]]:
    """Return the readings of a log and the decision on each, from the settings in its first row.

    Args:
        rows: rows of :attr:`cbs.BatchSizeController.rows`, or the lines of its file.

    Raises:
        ConfigError: if the rows are not such a log.
    """
    try:
        settings, *seen = rows
        accumulation = AccumulationPlan(**settings)
        looks = [NoiseReading(**{name: row[name] for name in NoiseReading.__dataclass_fields__}) for row in seen]
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"not the log of a BatchSizeController: {type(error).__name__}: {error}") from None
    return [(look, accumulation.decide(look)) for look in looks]


def row_of(look: NoiseReading, after: Stage) -> dict[str, Any]:
    """Return a row of the log: the reading and the decision."""
    return asdict(look) | {"next_batch_size": after.batch_size, "next_lr_factor": after.lr_factor}
