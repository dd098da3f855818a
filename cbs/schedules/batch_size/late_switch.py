"""A small batch for most of the run, then a large one (Wang et al., arXiv 2602.14208).

Where the task is hard, the best schedule keeps the batch small and grows it late: soon after the switch the loss is
that of a run with the large batch. The paper's 1.1B model switches from 1024 to 2560 after 75 % of a trillion tokens.
"""

from __future__ import annotations

from cbs.errors import ConfigError
from cbs.schedules.batch_size import BATCH_SCHEDULES, OpenLoop, RunSettings, exponent, joined, number, of_table, whole


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
