r"""Seesaw: cut the learning rate by the square root of the scheduled cut, grow the batch (Meterez et al., 2510.14717).

Where the learning-rate schedule has fallen by a further factor :math:`\alpha`, the learning rate falls by
:math:`\sqrt\alpha` and the batch size grows by :math:`\alpha`. All pairs of a cut a and a growth b with the same
:math:`a \sqrt b` give the same path of normalized SGD; this pair, :math:`a = \sqrt b`, is the last stable one.

The run takes the share :math:`\sum_k (x_{k+1} - x_k) \alpha^{-k}` of the steps with constant batch size, which tends to
:math:`\int \eta(x)/\eta_0\,dx`: :math:`2/\pi` for a quarter of a cosine wave.
"""

from __future__ import annotations

from cbs.schedules.batch_size import BATCH_SCHEDULES, OpenLoop, RunSettings, cap_of, number, of_table
from cbs.schedules.batch_size.cuts import in_place_of_cuts, warmup_alone


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
