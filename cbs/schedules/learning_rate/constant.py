"""The peak learning rate for the whole run."""

from __future__ import annotations

from cbs.schedules.learning_rate import SCHEDULES, Multiplier
from cbs.trial.config import Schedule


@SCHEDULES.register("constant")
def constant(schedule: Schedule) -> Multiplier:
    """Return 1 always; ``decay_examples`` and ``final_fraction`` are not used."""
    return lambda examples: 1.0
