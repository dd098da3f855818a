"""Rules whose batch sizes are known before the run."""

from __future__ import annotations

from cbs.errors import ConfigError
from cbs.registry.values import parse_table
from cbs.schedules.batch_size import (
    BATCH_SCHEDULES,
    OpenLoop,
    RunSettings,
    Stage,
    exponent,
    joined,
    number,
    of_table,
    whole,
)


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
