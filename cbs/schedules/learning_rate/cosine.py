"""Decay along half a cosine wave (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts)."""

from __future__ import annotations

import math

from cbs.schedules.learning_rate import SCHEDULES, Multiplier, decay, decay_end
from cbs.trial.config import Schedule


@SCHEDULES.register("cosine")
def cosine(schedule: Schedule) -> Multiplier:
    r"""Return a decay in which the share :math:`(1 + \cos(\pi x))/2` of the fall remains at x.

    x is the share of the decay that has passed, from the end of the warmup to ``decay_examples``.
    """

    def left(share: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * share))

    return decay(schedule, left, start=schedule.warmup_examples, end=decay_end(schedule))
