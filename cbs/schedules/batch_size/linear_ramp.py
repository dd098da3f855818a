"""A straight ramp from one batch size to another, in equal increments (Megatron-LM's ``--rampup-batch-size``)."""

from __future__ import annotations

from cbs.errors import ConfigError
from cbs.schedules.batch_size import BATCH_SCHEDULES
from cbs.schedules.batch_size.base import OpenLoop, RunSettings, exponent, joined, of_table, whole


@BATCH_SCHEDULES.register("linear_ramp")
def linear_ramp(
    run: RunSettings, *, to: int, over_examples: int, increment: int = 1, lr_exponent: float = 0.0
) -> OpenLoop:
    """``over_examples`` in as many equal intervals as there are increments; Megatron's 16, 8, 300000 up to 1024 has 126
    of 2,381 (NeMo Speech, discussion 3947).

    Args:
        run: its batch size is where the ramp starts.
        to: batch size after the ramp.
        over_examples: length of the ramp.
        increment: examples by which the batch size grows at a time.
        lr_exponent: the learning rate goes with this power of the batch size.

    Raises:
        ConfigError: if the increments do not add up, or the ramp ends beyond the budget.
    """
    start, to, increment = run.batch_size, whole("to", to, least=run.batch_size + 1), whole("increment", increment)
    over = whole("over_examples", over_examples)
    intervals, rest = divmod(to - start, increment)
    if rest:
        raise ConfigError(
            f"batch schedule 'linear_ramp': from {start} to {to} is no whole number of increments of {increment}"
        )
    if over >= run.examples:
        raise ConfigError(
            f"batch schedule 'linear_ramp' ends after {over:,} examples, beyond the budget of {run.examples:,}; "
            "raise max_examples"
        )
    sizes = [start + index * increment for index in range(intervals + 1)]
    starts = [over * index / intervals for index in range(intervals + 1)]
    return of_table(run, zip(starts, sizes, joined(sizes, start, exponent(lr_exponent)), strict=True))
