r"""Where the learning rate would be cut, cut it by the root and grow the batch (Meterez et al., arXiv 2510.14717).

Where the learning-rate schedule has fallen by a further factor :math:`\alpha`, the learning rate falls by
:math:`\sqrt\alpha` and the batch size grows by :math:`\alpha`. Of all pairs of a cut a and a growth b with the same
:math:`a \sqrt b`, under which normalised SGD takes the same path, it is the last stable one, :math:`a = \sqrt b`.

Of the steps of the constant batch size it takes :math:`\sum_k (x_{k+1} - x_k) \alpha^{-k}`, which tends to
:math:`\int \eta(x)/\eta_0\,dx`: :math:`2/\pi` for a quarter of a cosine wave.
"""

from __future__ import annotations

from cbs.schedules.batch_size import BATCH_SCHEDULES
from cbs.schedules.batch_size.base import OpenLoop, RunSettings, cap_of, number, of_table
from cbs.schedules.batch_size.cuts import in_place_of_cuts, warmup_alone


@BATCH_SCHEDULES.register("seesaw")
def seesaw(run: RunSettings, *, alpha: float = 2.0, cap: int | None = None) -> OpenLoop:
    """Seesaw for the trial's learning-rate schedule, any that falls.

    Args:
        run: the learning-rate schedule is its own.
        alpha: cut of the learning rate that is replaced, above 1.
        cap: largest batch size; beyond it the learning rate falls as it would have. A batch is never larger than what
            is left of the budget either.

    Raises:
        ConfigError: if a value is out of its domain, or the learning rate does not fall.
    """
    factor = number("alpha", alpha, above=1.0)
    table = in_place_of_cuts(run, factor, 0.5, cap_of(run, cap), "seesaw")
    return of_table(run, table, multiplier=warmup_alone(run.lr_schedule))
