"""Decay along a power, as the large-batch recipes of LARS (power 2) and LAMB (power 1) have it."""

from __future__ import annotations

from cbs.schedules.learning_rate import SCHEDULES
from cbs.schedules.learning_rate.base import Multiplier, decay, decay_end, positive
from cbs.trial.config import Schedule


@SCHEDULES.register("polynomial")
def polynomial(schedule: Schedule, *, power: float = 1.0) -> Multiplier:
    """``(1 - x) ** power`` of the way down, x the share that passed between the warmup and ``decay_examples``.

    Args:
        schedule: the schedule.
        power: of the share that is left, above 0.

    Raises:
        ConfigError: if ``decay_examples`` is missing or the power refused.
    """
    power = positive(schedule, "power", power)
    return decay(
        schedule, lambda share: (1.0 - share) ** power, start=schedule.warmup_examples, end=decay_end(schedule)
    )
