"""Decay along a quarter of a cosine wave, as in Seesaw (Meterez et al. 2025, arXiv 2510.14717)."""

from __future__ import annotations

import math

from cbs.schedules.learning_rate import SCHEDULES, Multiplier, decay, decay_end
from cbs.trial.config import Schedule


@SCHEDULES.register("quarter_cosine")
def quarter_cosine(schedule: Schedule) -> Multiplier:
    r"""Return a decay in which the share :math:`\cos(\pi x/2)` of the fall remains at x.

    x is the share of the decay that has passed, from the end of the warmup to ``decay_examples``.
    """

    def left(share: float) -> float:
        return math.cos(0.5 * math.pi * share)

    return decay(schedule, left, start=schedule.warmup_examples, end=decay_end(schedule))
