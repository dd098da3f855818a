"""Common parts of the schedules that decay."""

from __future__ import annotations

import math
from collections.abc import Callable

from cbs.errors import ConfigError
from cbs.registry.domains import number
from cbs.trial.config import Schedule

Multiplier = Callable[[int], float]
"""Function from the examples seen after an update to that update's fraction of the peak learning rate.

Entries of the registry return one; a trial calls it before every update."""


def decay(schedule: Schedule, left: Callable[[float], float], *, start: float, end: float) -> Multiplier:
    """Return a multiplier that falls from 1 at ``start`` examples to ``final_fraction`` at ``end``, and is constant
    outside.

    Args:
        schedule: schedule with the final fraction.
        left: function from the share of the decay that has passed, in [0, 1], to the share of the fall that remains.
        start, end: start and end of the decay in examples.
    """
    final = schedule.final_fraction
    return lambda examples: final + (1.0 - final) * left(min(1.0, max(0.0, (examples - start) / (end - start))))


def decay_end(schedule: Schedule) -> int:
    """Return ``decay_examples``.

    Raises:
        ConfigError: if the schedule has none.
    """
    if schedule.decay_examples is None:
        raise ConfigError(f"schedule {schedule.name!r} needs decay_examples, the examples after which it has decayed")
    return schedule.decay_examples


def positive(schedule: Schedule, name: str, value: object, *, below: float = math.inf) -> float:
    """Check an option that is a number above 0, see :func:`cbs.registry.domains.number`."""
    return number(f"{name} of schedule {schedule.name!r}", value, below=below)
