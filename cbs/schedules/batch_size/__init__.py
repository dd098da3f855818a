"""Batch-size schedules: how many examples the coming step takes; one file each, found by name.

Not to be confused with :mod:`cbs.schedules.learning_rate`, which holds the learning rate's. A rule maps the examples
seen so far, and for closed-loop rules what was measured of the gradient's noise, to a batch size and a factor of the
learning rate. It knows nothing of steps: its boundaries stay where they are whatever the sizes before them.
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
"""``entry(run, *, option=default, ...)`` returns the schedule of a run."""

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
    """The schedule a configuration names, for one run; ``None`` is ``constant``.

    Raises:
        ConfigError: if the name or an option is unknown, an option is missing, or does not suit the run.
    """
    if choice is None:
        choice = Choice(name="constant")
    schedule: BatchSchedule = BATCH_SCHEDULES.make(choice.name, run, **choice.options)
    if isinstance(schedule, ClosedLoop) and run.batch_size < FEWEST:
        raise ConfigError(
            f"batch schedule {choice.name!r} compares the examples of a batch, and a batch of "
            f"{run.batch_size} has no two; start from {FEWEST} or more"
        )
    return schedule


def batch_schedule_options(*names: str) -> list[str]:
    """The options that batch schedules of these names take, or any of all, sorted."""
    entries = [BATCH_SCHEDULES[name] for name in names or BATCH_SCHEDULES.names()]
    return sorted({option for entry in entries for option in [*inspect.signature(entry).parameters][1:]})
