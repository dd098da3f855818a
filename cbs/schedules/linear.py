"""Decay along a straight line."""

from __future__ import annotations

from cbs.config import Schedule
from cbs.schedules import SCHEDULES
from cbs.schedules.base import Multiplier, decay, decay_end


@SCHEDULES.register("linear")
def linear(schedule: Schedule) -> Multiplier:
    """From the end of the warmup to ``decay_examples``."""
    return decay(schedule, lambda share: 1.0 - share, start=schedule.warmup_examples, end=decay_end(schedule))
