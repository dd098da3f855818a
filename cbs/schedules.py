"""Learning-rate schedules as functions of examples, not steps.

A schedule is a multiplier in [0, 1] of the peak learning rate, applied to the update that ends at ``examples``
examples. Because it knows nothing of steps, it means the same at every batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cbs.config import Schedule
from cbs.errors import ConfigError, UnknownNameError

Decay = Callable[[float], float]
"""Maps the share of the decay that has passed, in [0, 1], to the share that is left above the final value."""

SCHEDULES: dict[str, Decay] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
}


def check_schedule(schedule: Schedule) -> None:
    """Raise a :class:`~cbs.errors.ConfigError` for an unknown name or a decay without a length."""
    if schedule.name not in SCHEDULES:
        raise UnknownNameError(f"unknown schedule {schedule.name!r}: known names are {', '.join(SCHEDULES)}")
    if schedule.name != "constant" and schedule.decay_examples is None:
        raise ConfigError(f"schedule {schedule.name!r} needs decay_examples, the examples after which it has decayed")


def lr_multiplier(schedule: Schedule, examples: int) -> float:
    """Fraction of the peak learning rate for the update after which ``examples`` examples have been seen."""
    if examples < schedule.warmup_examples:
        return examples / schedule.warmup_examples
    if schedule.decay_examples is None:
        return 1.0
    share = (examples - schedule.warmup_examples) / (schedule.decay_examples - schedule.warmup_examples)
    remaining = SCHEDULES[schedule.name](min(1.0, share))
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * remaining
