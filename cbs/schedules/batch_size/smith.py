r"""Do not decay the learning rate, increase the batch size (Smith, Kindermans, Ying and Le, arXiv 1711.00489).

The noise of SGD goes as :math:`\eta/B`, so where the learning rate would be cut by a the batch size grows by a and the
learning rate stays. The paper's further steps, a larger first learning rate with a larger first batch, and more
momentum, are axes of a sweep.
"""

from __future__ import annotations

from cbs.schedules.batch_size import BATCH_SCHEDULES
from cbs.schedules.batch_size.base import OpenLoop, RunSettings, cap_of, number, of_table
from cbs.schedules.batch_size.cuts import in_place_of_cuts, warmup_alone


@BATCH_SCHEDULES.register("smith")
def smith(run: RunSettings, *, cut: float = 5.0, cap: int | None = None) -> OpenLoop:
    """The batch size grows in place of the trial's learning-rate schedule.

    Args:
        run: the learning-rate schedule is its own, any that falls.
        cut: factor of the cut of the learning rate that is replaced, above 1.
        cap: largest batch size; beyond it the learning rate falls as it would have.

    Raises:
        ConfigError: if a value is out of its domain, or the learning rate does not fall.
    """
    table = in_place_of_cuts(run, number("cut", cut, above=1.0), 0.0, cap_of(run, cap), "smith")
    return of_table(run, table, multiplier=warmup_alone(run.lr_schedule))
