r"""The batch size that the noise scale and the price of a step ask for (McCandlish et al. 2018, arXiv 1812.06162, D.6).

:math:`B = \sqrt{r\, B_\mathrm{simple}}`, with r the examples that one step less is worth. The noise scale counts with
the *lower* end of its interval, so that noise in the measurement does not make the batch larger than it pays.
"""

from __future__ import annotations

import math

from cbs.schedules.batch_size import BATCH_SCHEDULES
from cbs.schedules.batch_size.base import FEWEST, NOISE_SCALE, ClosedLoop, Observed, RunSettings, Stage, number
from cbs.schedules.batch_size.looking import Looking, looking


@BATCH_SCHEDULES.register("noise_rule")
@looking()
def noise_rule(run: RunSettings, *, price: float, how: Looking) -> ClosedLoop:
    """The batch size follows the noise scale, upwards and downwards.

    Args:
        run: starts with its own batch size.
        price: r, in examples per step.
        how: see :class:`~cbs.schedules.batch_size.looking.Looking`.
    """
    r = number("price", price)

    def decide(examples: int, seen: Observed) -> Stage:
        if seen.low is None:
            return seen.stage
        return how.stage(run, max(FEWEST, round(math.sqrt(r * seen.low))))

    return how.loop(run, NOISE_SCALE, decide)
