"""Learning-rate schedules as functions of examples, not steps; found by name.

A schedule is a multiplier of the peak learning rate, as a function of the examples seen after an update. Because
it does not use the number of steps, it means the same at every batch size.
"""

import inspect
import math
from collections.abc import Callable
from numbers import Real

from cbs.errors import ConfigError
from cbs.registry import ImportFallback, Registry
from cbs.registry.values import number
from cbs.trial.config import Schedule
from cbs.trial.parent import Parent

Multiplier = Callable[[int], float]
"""Function from the examples seen after an update to that update's fraction of the peak learning rate.

Entries of the registry return one; a trial calls it before every update."""


def decay(schedule: Schedule, left: Callable[[float], float], *, start: float, end: float) -> Multiplier:
    """Return a multiplier that falls from 1 at ``start`` examples to ``final_fraction`` at ``end``, and is constant
    outside.

    Args:
        schedule: schedule with the final fraction.
        left: function from the share of the decay that has passed, in [0, 1], to the share of the fall that remains.
        start, end: start and end of the decay in examples.
    """
    # Clamped, as a trial may go on beyond the end, and a branch of it may begin there.
    final = schedule.final_fraction
    return lambda examples: final + (1.0 - final) * left(min(1.0, max(0.0, (examples - start) / (end - start))))


def decay_end(schedule: Schedule) -> int:
    """Return ``decay_examples``.

    Raises:
        ConfigError: if the schedule has none.
    """
    if schedule.decay_examples is None:
        raise ConfigError(f"schedule {schedule.name!r} needs decay_examples, the examples after which it has decayed")
    return schedule.decay_examples


def positive(schedule: Schedule, name: str, value: object, *, below: float = math.inf) -> float:
    """Check an option that is a number above 0, see :func:`cbs.registry.values.number`."""
    return number(f"{name} of schedule {schedule.name!r}", value, below=below)


SCHEDULES: Registry[Callable[..., Multiplier]] = Registry("schedule", "cbs.schedules.learning_rate", makes=Callable)
"""Entries are called as ``entry(schedule, *, option=default, ...)`` and return the multiplier from the end of the
warmup on."""

SCHEDULES.fallback = ImportFallback("schedule")
__all__ = ["SCHEDULES", "Multiplier", "build_schedule", "of_branch", "schedule_options"]


def build_schedule(schedule: Schedule) -> Multiplier:
    """Return the multiplier that a configuration names, with a linear warmup from 0 before it.

    >>> multiplier = build_schedule(Schedule(name="linear", warmup_examples=100, decay_examples=1100))
    >>> multiplier(50), multiplier(100), multiplier(600)
    (0.5, 1.0, 0.5)

    Raises:
        ConfigError: if the name or an option is unknown, an option or ``decay_examples`` is missing, a value is
            invalid, or the entry does not return a multiplier.
    """
    after: Multiplier = SCHEDULES.make(schedule.name, schedule, **schedule.options)
    warmup = schedule.warmup_examples
    first = after(warmup + 1)
    if not isinstance(first, Real) or not 0.0 <= first < math.inf:
        raise ConfigError(
            f"schedule {schedule.name!r} must return a function of the examples seen whose values are numbers of at "
            f"least 0; got {first!r}"
        )
    return lambda examples: examples / warmup if examples < warmup else after(examples)


def of_branch(multiplier: Multiplier, parent: Parent | None) -> Multiplier:
    """Return the multiplier of a trial that starts from a parent: the parent's schedule continues after its examples.

    Where the parent has ``warmup_examples``, the trial's own linear warmup multiplies it.

    >>> from cbs.trial.parent import Parent
    >>> parent = Parent(source="weights.pt", examples=600, digest="0" * 16, warmup_examples=100)
    >>> multiplier = of_branch(build_schedule(Schedule(name="linear", decay_examples=1000)), parent)
    >>> multiplier(25), multiplier(150)
    (0.09375, 0.25)
    """
    if parent is None:
        return multiplier
    born, warmup = parent.examples, parent.warmup_examples
    return lambda examples: (examples / warmup if examples < warmup else 1.0) * multiplier(born + examples)


def schedule_options(*names: str) -> list[str]:
    """Return the options of the schedules with these names, or of all, sorted."""
    entries = [SCHEDULES[name] for name in names or SCHEDULES.names()]
    return sorted({option for entry in entries for option in [*inspect.signature(entry).parameters][1:]})


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
        power: exponent of both decays, see :mod:`cbs.schedules.learning_rate`.

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
