"""Decay along a power, as in the large-batch recipes of LARS (power 2) and LAMB (power 1)."""

from __future__ import annotations

from cbs.schedules.learning_rate import SCHEDULES, Multiplier, decay, decay_end, positive
from cbs.trial.config import Schedule


@SCHEDULES.register("polynomial")
def polynomial(schedule: Schedule, *, power: float = 1.0) -> Multiplier:
    """Return a decay in which the share ``(1 - x) ** power`` of the fall remains at x.

    x is the share of the decay that has passed, from the end of the warmup to ``decay_examples``.

    Args:
        schedule: the schedule.
        power: exponent of the remaining share, above 0.

    Raises:
        ConfigError: if ``decay_examples`` is missing or the power is invalid.
    """
    power = positive(schedule, "power", power)
    return decay(
        schedule, lambda share: (1.0 - share) ** power, start=schedule.warmup_examples, end=decay_end(schedule)
    )
