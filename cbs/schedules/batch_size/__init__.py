"""Batch-size schedules: the number of examples in the next step; one file each, found by name.

Not to be confused with :mod:`cbs.schedules.learning_rate`, the schedules of the learning rate. A rule maps the examples
seen so far, and for closed-loop rules the measured gradient noise, to a batch size and a factor of the learning rate.
It does not use the number of steps, so its boundaries do not depend on earlier batch sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from cbs.errors import ConfigError
from cbs.registry import ImportFallback, Registry
from cbs.registry.choices import Choice
from cbs.schedules.batch_size.base import FEWEST, BatchSchedule, ClosedLoop, OpenLoop, RunSettings, Stage

BATCH_SCHEDULES: Registry[Callable[..., BatchSchedule]] = Registry(
    "batch schedule", "cbs.schedules.batch_size", makes=BatchSchedule
)
"""Entries are called as ``entry(run, *, option=default, ...)`` and return the schedule of a run."""

BATCH_SCHEDULES.fallback = ImportFallback("batch schedule")

__all__ = [
    "BATCH_SCHEDULES",
    "ClosedLoop",
    "OpenLoop",
    "RunSettings",
    "Stage",
    "batch_schedule_options",
    "build_batch_schedule",
]


def build_batch_schedule(choice: Choice | None, run: RunSettings) -> BatchSchedule:
    """Build the schedule that a configuration names, for one run; ``None`` is ``constant``.

    Raises:
        ConfigError: if the name or an option is unknown, or an option is missing or does not suit the run.
    """
    if choice is None:
        choice = Choice(name="constant")
    schedule: BatchSchedule = BATCH_SCHEDULES.make(choice.name, run, **choice.options)
    if isinstance(schedule, ClosedLoop) and run.batch_size < FEWEST:
        raise ConfigError(
            f"batch schedule {choice.name!r} compares the examples of a batch, so start from {FEWEST} or more; "
            f"the batch size is {run.batch_size}"
        )
    return schedule


def batch_schedule_options(*names: str) -> list[str]:
    """Return the options of the batch schedules with these names, or of all, sorted."""
    entries = [BATCH_SCHEDULES[name] for name in names or BATCH_SCHEDULES.names()]
    return sorted({option for entry in entries for option in [*inspect.signature(entry).parameters][1:]})
