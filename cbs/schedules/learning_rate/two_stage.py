"""Two stages with a warmup each, as LAMB trains BERT (You et al. 2020, arXiv 1904.00962)."""

from __future__ import annotations

from cbs.errors import ConfigError
from cbs.schedules.learning_rate import SCHEDULES, Multiplier, decay, decay_end, positive
from cbs.trial.config import Schedule


@SCHEDULES.register("two_stage")
def two_stage(
    schedule: Schedule,
    *,
    boundary_examples: int,
    rewarmup_examples: int,
    second_peak: float = 1.0,
    power: float = 1.0,
) -> Multiplier:
    """Return a polynomial decay that ends at the boundary, then a linear warmup from 0 and a second decay.

    Args:
        schedule: its warmup and peak are those of the first stage; the second ends at ``decay_examples``. Each stage
            ends at ``final_fraction`` of its own peak.
        boundary_examples: number of examples at which the second stage begins, after the warmup.
        rewarmup_examples: length of the second stage's warmup.
        second_peak: peak of the second stage as a multiple of that of the first.
        power: exponent of both decays, see :mod:`cbs.schedules.learning_rate.polynomial`.

    Raises:
        ConfigError: if ``decay_examples`` is missing, a value is invalid, or the parts do not follow each other.
    """
    end, power = decay_end(schedule), positive(schedule, "power", power)
    boundary = positive(schedule, "boundary_examples", boundary_examples)
    top = boundary + positive(schedule, "rewarmup_examples", rewarmup_examples)
    peak = positive(schedule, "second_peak", second_peak)
    if not schedule.warmup_examples < boundary < top < end:
        raise ConfigError(
            f"schedule 'two_stage' needs warmup_examples ({schedule.warmup_examples}) < boundary_examples "
            f"({boundary_examples}) and boundary_examples + rewarmup_examples ({rewarmup_examples}) < decay_examples "
            f"({end})"
        )

    def left(share: float) -> float:
        return (1.0 - share) ** power

    first = decay(schedule, left, start=schedule.warmup_examples, end=boundary)
    second = decay(schedule, left, start=top, end=end)

    def multiplier(examples: int) -> float:
        if examples <= boundary:
            return first(examples)
        return peak * ((examples - boundary) / (top - boundary) if examples < top else second(examples))

    return multiplier
