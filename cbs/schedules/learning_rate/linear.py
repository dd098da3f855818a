"""Decay along a straight line."""

from __future__ import annotations

from cbs.schedules.learning_rate import SCHEDULES, Multiplier, decay, decay_end
from cbs.trial.config import Schedule


@SCHEDULES.register("linear")
def linear(schedule: Schedule) -> Multiplier:
    """Return a linear decay from the end of the warmup to ``decay_examples``."""
    return decay(schedule, lambda share: 1.0 - share, start=schedule.warmup_examples, end=decay_end(schedule))
