"""What schedules that decay have in common."""

from __future__ import annotations

import math
from collections.abc import Callable

from cbs.errors import ConfigError
from cbs.registry.domains import number
from cbs.trial.config import Schedule

Multiplier = Callable[[int], float]
"""Maps the examples seen after an update to the fraction of the peak learning rate of that update.

What an entry of the registry returns; a trial calls it before every update."""


def decay(schedule: Schedule, left: Callable[[float], float], *, start: float, end: float) -> Multiplier:
    """From 1 at ``start`` examples to ``final_fraction`` at ``end``, and constant outside.

    Args:
        schedule: says the final fraction.
        left: maps the share of the decay that has passed, in [0, 1], to the share that is left above the final value.
        start, end: examples.
    """
    final = schedule.final_fraction
    return lambda examples: final + (1.0 - final) * left(min(1.0, max(0.0, (examples - start) / (end - start))))


def decay_end(schedule: Schedule) -> int:
    """``decay_examples``.

    Raises:
        ConfigError: if the schedule has none.
    """
    if schedule.decay_examples is None:
        raise ConfigError(f"schedule {schedule.name!r} needs decay_examples, the examples after which it has decayed")
    return schedule.decay_examples


def positive(schedule: Schedule, name: str, value: object, *, below: float = math.inf) -> float:
    """An option as a float above 0, see :func:`cbs.registry.domains.number`."""
    return number(f"{name} of schedule {schedule.name!r}", value, below=below)
