"""Warmup, stable, decay (Hu et al. 2024, arXiv 2404.06395): constant until the last part of the run."""

from __future__ import annotations

from cbs.errors import ConfigError
from cbs.schedules.learning_rate import SCHEDULES, Multiplier, decay, decay_end, positive
from cbs.trial.config import Schedule


@SCHEDULES.register("wsd")
def wsd(schedule: Schedule, *, decay_share: float = 0.2) -> Multiplier:
    """Return the peak, then a linear decay over the last ``decay_share`` of ``decay_examples``.

    Args:
        schedule: the schedule.
        decay_share: share of ``decay_examples`` over which the learning rate falls, in (0, 1).

    Raises:
        ConfigError: if ``decay_examples`` is missing, the share is invalid, or the decay begins within the warmup.
    """
    end = decay_end(schedule)
    start = end * (1.0 - positive(schedule, "decay_share", decay_share, below=1.0))
    if start < schedule.warmup_examples:
        raise ConfigError(
            f"schedule 'wsd' begins to decay after {start:g} examples, within the warmup of "
            f"{schedule.warmup_examples}; lower decay_share or the warmup"
        )
    return decay(schedule, lambda share: 1.0 - share, start=start, end=end)
