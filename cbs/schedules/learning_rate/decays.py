"""What remains of the learning rate after its warmup, as functions of the examples."""

import math

from cbs.errors import ConfigError
from cbs.schedules.learning_rate import SCHEDULES, Multiplier, decay, decay_end, positive
from cbs.trial.config import Schedule


# The peak learning rate for the whole run.
@SCHEDULES.register("constant")
def constant(schedule: Schedule) -> Multiplier:
    """Return 1 always; ``decay_examples`` and ``final_fraction`` are not used."""
    return lambda examples: 1.0


# Decay along a straight line.
@SCHEDULES.register("linear")
def linear(schedule: Schedule) -> Multiplier:
    """Return a linear decay from the end of the warmup to ``decay_examples``."""
    return decay(schedule, lambda share: 1.0 - share, start=schedule.warmup_examples, end=decay_end(schedule))


# Decay along a power, as in the large-batch recipes of LARS (power 2) and LAMB (power 1).
@SCHEDULES.register("polynomial")
def polynomial(schedule: Schedule, *, power: float = 1.0) -> Multiplier:
    """Return a decay in which the share ``(1 - x) ** power`` of the fall remains at x.

    x is the share of the decay that has passed, from the end of the warmup to ``decay_examples``.

    Args:
        schedule: the schedule.
        power: exponent of the remaining share, above 0.

    Raises:
        ConfigError: if ``decay_examples`` is missing or the power is invalid.
    """
    power = positive(schedule, "power", power)
    return decay(
        schedule, lambda share: (1.0 - share) ** power, start=schedule.warmup_examples, end=decay_end(schedule)
    )


# Decay along half a cosine wave (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts).
@SCHEDULES.register("cosine")
def cosine(schedule: Schedule) -> Multiplier:
    r"""Return a decay in which the share :math:`(1 + \cos(\pi x))/2` of the fall remains at x.

    x is the share of the decay that has passed, from the end of the warmup to ``decay_examples``.
    """

    def left(share: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * share))

    return decay(schedule, left, start=schedule.warmup_examples, end=decay_end(schedule))


# Decay along a quarter of a cosine wave, as in Seesaw (Meterez et al. 2025, arXiv 2510.14717).
@SCHEDULES.register("quarter_cosine")
def quarter_cosine(schedule: Schedule) -> Multiplier:
    r"""Return a decay in which the share :math:`\cos(\pi x/2)` of the fall remains at x.

    x is the share of the decay that has passed, from the end of the warmup to ``decay_examples``.
    """

    def left(share: float) -> float:
        return math.cos(0.5 * math.pi * share)

    return decay(schedule, left, start=schedule.warmup_examples, end=decay_end(schedule))


# Decay with the inverse square root of the examples, which needs no length (Vaswani et al. 2017, arXiv 1706.03762;
# Zhai et al. 2022, arXiv 2106.04560).
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
    # Not the root of tau over examples: this begins at 1 where the warmup ends, whatever tau is.
    return lambda examples: final + (1.0 - final) * math.sqrt(tau / (tau + examples - start))


# Warmup, stable, decay (Hu et al. 2024, arXiv 2404.06395): constant until the last part of the run.
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


# Two stages with a warmup each, as LAMB trains BERT (You et al. 2020, arXiv 1904.00962).
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
        power: exponent of both decays, see :mod:`cbs.schedules.learning_rate.decays`.

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
        # A step that ends at the boundary belongs to the first stage: examples include those of the step.
        if examples <= boundary:
            return first(examples)
        return peak * ((examples - boundary) / (top - boundary) if examples < top else second(examples))

    return multiplier
