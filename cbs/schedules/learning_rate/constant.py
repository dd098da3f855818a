"""The peak learning rate throughout."""

from __future__ import annotations

from cbs.schedules.learning_rate import SCHEDULES
from cbs.schedules.learning_rate.base import Multiplier
from cbs.trial.config import Schedule


@SCHEDULES.register("constant")
def constant(schedule: Schedule) -> Multiplier:
    """1; ``decay_examples`` and ``final_fraction`` play no part."""
    return lambda examples: 1.0
