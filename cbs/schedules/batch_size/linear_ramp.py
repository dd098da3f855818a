"""A straight ramp from one batch size to another, in equal increments (Megatron-LM's ``--rampup-batch-size``)."""

from __future__ import annotations

from cbs.errors import ConfigError
from cbs.schedules.batch_size import BATCH_SCHEDULES, OpenLoop, RunSettings, exponent, joined, of_table, whole


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
