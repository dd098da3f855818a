"""Learning-rate schedules as functions of examples, not steps; found by name.

A schedule is a multiplier of the peak learning rate, as a function of the examples seen after an update. Because
it does not use the number of steps, it means the same at every batch size.
"""

import inspect
import math
from collections.abc import Callable
from numbers import Real

from cbs.errors import ConfigError
from cbs.registry import ImportFallback, Registry
from cbs.registry.values import number
from cbs.trial.config import Schedule
from cbs.trial.parent import Parent

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
    # Clamped, as a trial may go on beyond the end, and a branch of it may begin there.
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
    """Check an option that is a number above 0, see :func:`cbs.registry.values.number`."""
    return number(f"{name} of schedule {schedule.name!r}", value, below=below)


SCHEDULES: Registry[Callable[..., Multiplier]] = Registry("schedule", "cbs.schedules.learning_rate", makes=Callable)
"""Entries are called as ``entry(schedule, *, option=default, ...)`` and return the multiplier from the end of the
warmup on."""

SCHEDULES.fallback = ImportFallback("schedule")
__all__ = ["SCHEDULES", "Multiplier", "build_schedule", "of_branch", "schedule_options"]


def build_schedule(schedule: Schedule) -> Multiplier:
    """Return the multiplier that a configuration names, with a linear warmup from 0 before it.

    >>> multiplier = build_schedule(Schedule(name="linear", warmup_examples=100, decay_examples=1100))
    >>> multiplier(50), multiplier(100), multiplier(600)
    (0.5, 1.0, 0.5)

    Raises:
        ConfigError: if the name or an option is unknown, an option or ``decay_examples`` is missing, a value is
            invalid, or the entry does not return a multiplier.
    """
    after: Multiplier = SCHEDULES.make(schedule.name, schedule, **schedule.options)
    warmup = schedule.warmup_examples
    first = after(warmup + 1)
    if not isinstance(first, Real) or not 0.0 <= first < math.inf:
        raise ConfigError(
            f"schedule {schedule.name!r} must return a function of the examples seen whose values are numbers of at "
            f"least 0; got {first!r}"
        )
    return lambda examples: examples / warmup if examples < warmup else after(examples)


def of_branch(multiplier: Multiplier, parent: Parent | None) -> Multiplier:
    """Return the multiplier of a trial that starts from a parent: the parent's schedule continues after its examples.

    Where the parent has ``warmup_examples``, the trial's own linear warmup multiplies it.

    >>> from cbs.trial.parent import Parent
    >>> parent = Parent(source="weights.pt", examples=600, digest="0" * 16, warmup_examples=100)
    >>> multiplier = of_branch(build_schedule(Schedule(name="linear", decay_examples=1000)), parent)
    >>> multiplier(25), multiplier(150)
    (0.09375, 0.25)
    """
    if parent is None:
        return multiplier
    born, warmup = parent.examples, parent.warmup_examples
    return lambda examples: (examples / warmup if examples < warmup else 1.0) * multiplier(born + examples)


def schedule_options(*names: str) -> list[str]:
    """Return the options of the schedules with these names, or of all, sorted."""
    entries = [SCHEDULES[name] for name in names or SCHEDULES.names()]
    return sorted({option for entry in entries for option in [*inspect.signature(entry).parameters][1:]})
