"""Batch size and learning rate that grow together, as planned or when the gradient has become small."""

import math
from collections.abc import Iterator

from cbs.errors import ConfigError
from cbs.schedules.batch_size import (
    BATCH_SCHEDULES,
    GRAD_SQ_NORM,
    ClosedLoop,
    Looking,
    Observed,
    OpenLoop,
    RunSettings,
    Stage,
    cap_of,
    capped,
    looking,
    number,
    of_table,
    whole,
)


# Stage by stage (Umeda and Iiduka, arXiv 2508.05297).
@BATCH_SCHEDULES.register("growth")
def growth(
    run: RunSettings,
    *,
    first_examples: int,
    delta: float = 2.0,
    gamma: float = 1.4,
    stage_power: float = 1.0,
    cap: int | None = 2048,
) -> OpenLoop:
    """Return stages of growing length, batch size and learning rate.

    Args:
        run: settings of the run, whose batch size is the first.
        first_examples: length of the first stage.
        delta: factor of the batch size from one stage to the next, above 1.
        gamma: factor of the learning rate from one stage to the next, below the square root of ``delta``.
        stage_power: each stage has ``delta ** stage_power`` times the examples of the one before.
        cap: largest batch size; the learning rate stops growing when it is reached.

    Raises:
        ConfigError: if the growth diverges, a value is invalid, or the first stage takes the whole budget.
    """
    delta, gamma = checked_growth(delta, gamma)
    # ``above`` is excluded, and 0 is a valid power: stages of equal length.
    first, power = whole("first_examples", first_examples), number("stage_power", stage_power, above=-1e-12)
    limit = cap_of(run, cap)
    if first >= run.examples:
        raise ConfigError(
            f"the first stage of batch schedule 'growth' takes {first:,} examples, the whole budget of "
            f"{run.examples:,}; lower first_examples"
        )

    def table() -> Iterator[tuple[float, int, float]]:
        start, stage = 0.0, 0
        while start < run.examples:
            yield start, *grown(run, stage, delta, gamma, limit)
            start += first * delta ** (power * stage)
            stage += 1

    return of_table(run, table())


def grown(run: RunSettings, stage: int, delta: float, gamma: float, cap: int | None) -> tuple[int, float]:
    """Return batch size and factor of the learning rate after this many increases."""
    # Rounded first: a power that is a whole number may come out just above it, and would be raised by one.
    sizes = [math.ceil(round(run.batch_size * delta**index, 6)) for index in range(stage + 1)]
    under = sum(cap is None or size <= cap for size in sizes) - 1
    return capped(sizes[-1], cap), gamma ** max(0, under)


def checked_growth(delta: float, gamma: float) -> tuple[float, float]:
    """Check and return the two growth factors.

    Raises:
        ConfigError: if ``delta`` is not above 1 or ``gamma`` not above 0, or the learning rate grows faster than the
            square root of the batch size.
    """
    delta, gamma = number("delta", delta, above=1.0), number("gamma", gamma)
    if math.sqrt(delta) <= gamma:
        raise ConfigError(
            f"growth with delta={delta:g}, gamma={gamma:g} diverges: the learning rate may grow by less than "
            f"sqrt(delta) = {math.sqrt(delta):.4g} a stage (arXiv 2508.05297)"
        )
    return delta, gamma


# Growth that waits for the gradient to become small (Umeda and Iiduka, arXiv 2508.05302).
@BATCH_SCHEDULES.register("growth_by_gradient")
@looking(without=("lr_exponent",), cap=4096)
def growth_by_gradient(
    run: RunSettings, *, first_norm: float, delta: float = 2.0, gamma: float = 1.4, how: Looking
) -> ClosedLoop:
    """Return a rule that grows batch size and learning rate when the gradient's norm falls.

    Args:
        run: settings of the run, whose batch size is the first.
        first_norm: epsilon_0, the norm of the gradient at which the first growth happens.
        delta: factor of the batch size at each growth, above 1.
        gamma: factor of the learning rate, below the square root of ``delta``.
        how: see :class:`~cbs.schedules.batch_size.Looking`; ``gamma`` sets the learning rate.
    """
    delta, gamma = checked_growth(delta, gamma)
    first = number("first_norm", first_norm)

    def decide(examples: int, seen: Observed) -> Stage:
        stage = seen.stage
        if seen.high is None or (how.cap is not None and stage.batch_size >= how.cap):
            return stage
        # The upper end of the interval: growth by chance cannot be undone.
        if seen.high > first**2 * run.batch_size / stage.batch_size:
            return stage
        growths = round(math.log(stage.batch_size / run.batch_size) / math.log(delta)) + 1
        return Stage(*grown(run, growths, delta, gamma, how.cap))

    return how.loop(run, GRAD_SQ_NORM, decide)
