"""Decay with the inverse square root of the examples, which needs no length (Vaswani et al. 2017, arXiv 1706.03762;
Zhai et al. 2022, arXiv 2106.04560).
"""

from __future__ import annotations

import math

from cbs.errors import ConfigError
from cbs.schedules.learning_rate import SCHEDULES, Multiplier, positive
from cbs.trial.config import Schedule


@SCHEDULES.register("inverse_sqrt")
def inverse_sqrt(schedule: Schedule, *, timescale_examples: int | None = None) -> Multiplier:
    r"""Return a decay in which the share :math:`\sqrt{\tau / (\tau + t)}` of the fall remains t examples after warmup.

    Args:
        schedule: ``decay_examples`` is not used; ``final_fraction`` is the limit.
        timescale_examples: tau, in examples; ``None`` for ``warmup_examples``, which gives the square root of warmup
            over examples.

    Raises:
        ConfigError: if the timescale is invalid, or neither it nor a warmup is given.
    """
    if timescale_examples is None and not schedule.warmup_examples:
        raise ConfigError("schedule 'inverse_sqrt' needs a warmup or timescale_examples")
    asked = schedule.warmup_examples if timescale_examples is None else timescale_examples
    tau = positive(schedule, "timescale_examples", asked)
    final, start = schedule.final_fraction, schedule.warmup_examples
    return lambda examples: final + (1.0 - final) * math.sqrt(tau / (tau + examples - start))
