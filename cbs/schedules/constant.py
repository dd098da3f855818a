"""The peak learning rate throughout."""

from __future__ import annotations

from cbs.config import Schedule
from cbs.schedules import SCHEDULES
from cbs.schedules.base import Multiplier


@SCHEDULES.register("constant")
def constant(schedule: Schedule) -> Multiplier:
    """1; ``decay_examples`` and ``final_fraction`` play no part."""
    return lambda examples: 1.0
