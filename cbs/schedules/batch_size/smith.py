r"""Do not decay the learning rate, increase the batch size (Smith, Kindermans, Ying and Le, arXiv 1711.00489).

The noise of SGD is proportional to :math:`\eta/B`, so where the learning rate would be cut by a factor a, the batch
size grows by a instead and the learning rate stays. The paper's further steps, a larger initial learning rate with a
larger first batch, and more momentum, can be axes of a sweep.
"""

from __future__ import annotations

from cbs.schedules.batch_size import BATCH_SCHEDULES, OpenLoop, RunSettings, cap_of, number, of_table
from cbs.schedules.batch_size.cuts import in_place_of_cuts, warmup_alone


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
