"""Rules whose batch sizes are known before the run: a table, and growth where a learning-rate schedule would fall."""

import itertools
from collections.abc import Iterator

from cbs.errors import ConfigError
from cbs.registry.values import parse_table
from cbs.schedules.batch_size import (
    BATCH_SCHEDULES,
    OpenLoop,
    RunSettings,
    Stage,
    cap_of,
    exponent,
    joined,
    number,
    of_table,
    whole,
)
from cbs.schedules.learning_rate import Multiplier, build_schedule
from cbs.trial.config import Schedule


# The trial's own batch size for the whole run.
@BATCH_SCHEDULES.register("constant")
def constant(run: RunSettings) -> OpenLoop:
    """Return a single stage; the same as no batch schedule."""
    return OpenLoop(starts=(0,), stages=(Stage(run.batch_size),))


# A table of stages, as in Megatron-LM, OLMo-core and the reports of DeepSeek.
@BATCH_SCHEDULES.register("stages")
def stages(run: RunSettings, *, table: str, unit: str = "examples", lr_exponent: float = 0.0) -> OpenLoop:
    """Return stages that begin at given numbers of examples or tokens.

    Args:
        run: settings of the run, whose batch size is that of the first stage.
        table: ``"0:16 10K:32 40K:64"``: where each stage begins and its batch size in examples.
        unit: unit of these starting points: ``examples`` or ``tokens``.
        lr_exponent: the learning rate follows the batch size with this power.

    Raises:
        ConfigError: if the table is malformed, begins with another batch size than the trial's, goes beyond the
            budget, or has a stage that is shorter than one batch of the stage before.
    """
    parsed, per_unit = parse_table(str(table)), 1
    if unit not in ("examples", "tokens"):
        raise ConfigError(f"unit of batch schedule 'stages' must be examples or tokens, got {unit!r}")
    if unit == "tokens":
        if run.tokens_per_example is None:
            raise ConfigError(
                "batch schedule 'stages' has unit=tokens, but the workload's examples have no tokens; use unit=examples"
            )
        per_unit = run.tokens_per_example
    # Rounded up: no example of a stage lies before its first token.
    starts, sizes = [-(-start // per_unit) for start, _ in parsed], [size for _, size in parsed]
    if sizes[0] != run.batch_size:
        raise ConfigError(
            f"the table of stages begins with batch size {sizes[0]}, but the trial with {run.batch_size}; "
            f"use --batch-sizes {sizes[0]}"
        )
    if starts[-1] >= run.examples:
        raise ConfigError(
            f"the stage of batch size {sizes[-1]} begins after {starts[-1]:,} examples, beyond the budget of "
            f"{run.examples:,}; raise max_examples"
        )
    for index in range(1, len(starts)):
        end = starts[index + 1] if index + 1 < len(starts) else run.examples
        if end - starts[index] < sizes[index - 1]:
            raise ConfigError(
                f"the stage of batch size {sizes[index]} holds {end - starts[index]:,} examples, less than one batch "
                f"of the stage before it ({sizes[index - 1]}), so a step might jump over it; lengthen it or leave it "
                "out"
            )
    factors = joined(sizes, run.batch_size, exponent(lr_exponent))
    return of_table(run, zip(starts, sizes, factors, strict=True))


# A straight ramp from one batch size to another, in equal increments (Megatron-LM's ``--rampup-batch-size``).
@BATCH_SCHEDULES.register("linear_ramp")
def linear_ramp(
    run: RunSettings, *, to: int, over_examples: int, increment: int = 1, lr_exponent: float = 0.0
) -> OpenLoop:
    """Return stages in which the batch size grows by equal increments at equal intervals.

    ``over_examples`` is divided into as many intervals as there are increments. Megatron's ``16 8 300000`` up to 1024
    has 126 intervals of 2,381 examples (NeMo Speech, discussion 3947).

    Args:
        run: settings of the run, whose batch size starts the ramp.
        to: batch size after the ramp.
        over_examples: length of the ramp.
        increment: examples by which the batch size grows in each interval.
        lr_exponent: the learning rate follows the batch size with this power.

    Raises:
        ConfigError: if the ramp is not a whole number of increments, or ends beyond the budget.
    """
    start, to, increment = run.batch_size, whole("to", to, least=run.batch_size + 1), whole("increment", increment)
    over = whole("over_examples", over_examples)
    intervals, rest = divmod(to - start, increment)
    if rest:
        raise ConfigError(
            f"batch schedule 'linear_ramp': {start} to {to} is not a whole number of increments of {increment}"
        )
    if over >= run.examples:
        raise ConfigError(
            f"batch schedule 'linear_ramp' ends after {over:,} examples, beyond the budget of {run.examples:,}; "
            "raise max_examples"
        )
    sizes = [start + index * increment for index in range(intervals + 1)]
    starts = [over * index / intervals for index in range(intervals + 1)]
    return of_table(run, zip(starts, sizes, joined(sizes, start, exponent(lr_exponent)), strict=True))


# A small batch for most of the run, then a large one (Wang et al., arXiv 2602.14208).
@BATCH_SCHEDULES.register("late_switch")
def late_switch(run: RunSettings, *, to: int, at: float = 0.75, lr_exponent: float = 0.0) -> OpenLoop:
    """Return two stages.

    Args:
        run: settings of the run, whose batch size is the first.
        to: batch size after the switch.
        at: share of the budget after which it happens, in (0, 1).
        lr_exponent: the learning rate follows the batch size with this power; 0, a constant learning rate, in the
            paper.

    Raises:
        ConfigError: if a value is invalid, or the switch leaves no room for a batch on either side.
    """
    sizes = [run.batch_size, whole("to", to)]
    switch = number("at", at, below=1.0) * run.examples
    if switch < 1 or run.examples - switch < sum(sizes):
        raise ConfigError(
            f"batch schedule 'late_switch' at {at:g} of {run.examples:,} examples leaves no room for batches of "
            f"{sizes[0]} and {sizes[1]}"
        )
    factors = joined(sizes, run.batch_size, exponent(lr_exponent))
    return of_table(run, zip([0.0, switch], sizes, factors, strict=True))


_LOOKS = 1000  # Number of points at which a schedule is checked not to rise


def cut_points(run: RunSettings, factor: float, of: str) -> Iterator[float]:
    """Yield the examples at which the learning rate has fallen to ``factor ** -k`` of its peak, for k = 1, 2, ..., in
    the budget.

    Args:
        run: settings of the run with the learning-rate schedule.
        factor: factor of each cut, above 1.
        of: name of the batch schedule, for messages.

    Raises:
        ConfigError: if the learning rate does not fall, or rises again after its warmup.
    """
    falls, start, end = build_schedule(run.lr_schedule), run.lr_schedule.warmup_examples, run.examples
    if start >= end:
        raise ConfigError(f"batch schedule {of!r}: the warmup of {start:,} examples takes the budget of {end:,}")
    values = [falls(round(start + (end - start) * index / _LOOKS)) for index in range(_LOOKS + 1)]
    # A rise by rounding is none.
    if any(later > sooner * (1 + 1e-9) for sooner, later in itertools.pairwise(values)):
        raise ConfigError(
            f"batch schedule {of!r} needs a learning rate that only falls after its warmup; "
            f"schedule {run.lr_schedule.name!r} rises again"
        )
    if values[-1] > values[0] * (1 - 1e-9):
        raise ConfigError(
            f"batch schedule {of!r} replaces the learning rate's decay, but schedule "
            f"{run.lr_schedule.name!r} does not decay within {end:,} examples; "
            "use --set schedule.name=cosine --set schedule.decay_examples=..."
        )
    level = 1.0
    while True:
        level /= factor
        if falls(end) > level * (1 + 1e-12):
            return
        low, high = float(start), float(end)
        # Examples are whole numbers, so a quarter is fine enough.
        while high - low > 0.25:
            middle = (low + high) / 2
            low, high = (low, middle) if falls(middle) <= level * (1 + 1e-12) else (middle, high)  # type: ignore[arg-type]
        yield high


def warmup_alone(schedule: Schedule) -> Multiplier:
    """Return the learning-rate schedule without its decay."""
    return build_schedule(Schedule(name="constant", warmup_examples=schedule.warmup_examples))


def in_place_of_cuts(
    run: RunSettings, factor: float, lr_power: float, cap: int | None, of: str
) -> Iterator[tuple[float, int, float]]:
    """Yield stages for :func:`~cbs.schedules.batch_size.of_table` that replace cuts of the learning rate.

    At the k-th cut by ``factor`` the batch size grows by ``factor``, and the learning rate falls by ``factor **
    lr_power`` instead. Once the batch size is at the cap, or a step would take all remaining examples, the batch size
    stays, and the learning rate falls by the whole ``factor`` as in the original schedule.
    """
    size, rate = float(run.batch_size), 1.0
    yield 0.0, run.batch_size, rate
    for start in cut_points(run, factor, of):
        larger = round(size * factor)
        if (cap is not None and larger > cap) or larger > run.examples - start:
            rate /= factor
        else:
            size, rate = size * factor, rate / factor**lr_power
        # A schedule that ends at 0 has cuts without end.
        if rate < 1e-12:
            return
        yield start, round(size), rate


# Do not decay the learning rate, increase the batch size (Smith, Kindermans, Ying and Le, arXiv 1711.00489).
@BATCH_SCHEDULES.register("smith")
def smith(run: RunSettings, *, cut: float = 5.0, cap: int | None = None) -> OpenLoop:
    """Return stages whose batch size grows where the trial's learning-rate schedule would fall.

    Args:
        run: settings of the run with its learning-rate schedule, any that falls.
        cut: factor of the learning-rate cuts that are replaced, above 1.
        cap: largest batch size; beyond it the learning rate falls as in the original schedule.

    Raises:
        ConfigError: if a value is invalid, or the learning rate does not fall.
    """
    table = in_place_of_cuts(run, number("cut", cut, above=1.0), 0.0, cap_of(run, cap), "smith")
    return of_table(run, table, multiplier=warmup_alone(run.lr_schedule))


# Seesaw: cut the learning rate by the square root of the scheduled cut, grow the batch (Meterez et al., 2510.14717).
@BATCH_SCHEDULES.register("seesaw")
def seesaw(run: RunSettings, *, alpha: float = 2.0, cap: int | None = None) -> OpenLoop:
    """Return Seesaw for the trial's learning-rate schedule, any that falls.

    Args:
        run: settings of the run with its learning-rate schedule.
        alpha: factor of the learning-rate cuts that are replaced, above 1.
        cap: largest batch size; beyond it the learning rate falls as in the original schedule. A batch is never larger
            than the rest of the budget either.

    Raises:
        ConfigError: if a value is invalid, or the learning rate does not fall.
    """
    factor = number("alpha", alpha, above=1.0)
    table = in_place_of_cuts(run, factor, 0.5, cap_of(run, cap), "seesaw")
    return of_table(run, table, multiplier=warmup_alone(run.lr_schedule))
