"""Derive the learning-rate schedule of a trial from its batch size and budget."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from cbs.schedules.learning_rate import build_schedule
from cbs.trial.config import Schedule


@dataclass(frozen=True, kw_only=True)
class ScheduleRule:
    """Learning-rate schedule of a sweep, from which that of a trial follows by its batch size.

    Attributes:
        name: name in :data:`cbs.schedules.learning_rate.SCHEDULES`.
        warmup_steps: warmup length in updates; the same number at every batch size.
        warmup_examples: warmup length in examples; replaces ``warmup_steps`` when given.
        decay_examples: examples after which the decay is complete.
        final_fraction: learning rate at the end of the decay, as a fraction of the peak.
        options: further options of the named schedule.
    """

    name: str = "constant"
    warmup_steps: int = 10
    warmup_examples: int | None = None
    decay_examples: int | None = None
    final_fraction: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)

    def at(self, batch_size: int) -> Schedule:
        """Return the schedule of a trial at ``batch_size``."""
        warmup = self.warmup_steps * batch_size if self.warmup_examples is None else self.warmup_examples
        return Schedule(
            name=self.name,
            warmup_examples=warmup,
            decay_examples=self.decay_examples,
            final_fraction=self.final_fraction,
            options=self.options,
        )

    def ends_with(self, budget: int) -> bool:
        """Return whether the schedule depends on a run's budget in examples: it decays, and no end of the decay is
        given."""
        if self.decay_examples is not None:
            return False
        first = dataclasses.replace(self.at(1), warmup_examples=min(1, self.at(1).warmup_examples))
        short, long = (
            build_schedule(dataclasses.replace(first, decay_examples=times * budget + 2)) for times in (1, 2)
        )
        return any(short(budget * part // 4 + 1) != long(budget * part // 4 + 1) for part in (1, 2, 3, 4))
