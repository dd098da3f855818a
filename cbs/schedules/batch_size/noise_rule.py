r"""The best batch size for a noise scale and a price of a step (McCandlish et al. 2018, arXiv 1812.06162, D.6).

:math:`B = \sqrt{r\, B_\mathrm{simple}}`, with r the examples that saving one step is worth. The *lower* end of
the noise scale's interval is used, so that measurement noise does not make the batch larger than is worthwhile.
"""

from __future__ import annotations

import math

from cbs.schedules.batch_size import (
    BATCH_SCHEDULES,
    FEWEST,
    NOISE_SCALE,
    ClosedLoop,
    Looking,
    Observed,
    RunSettings,
    Stage,
    looking,
    number,
)


@BATCH_SCHEDULES.register("noise_rule")
@looking()
def noise_rule(run: RunSettings, *, price: float, how: Looking) -> ClosedLoop:
    """Return a rule whose batch size follows the noise scale, upwards and downwards.

    Args:
        run: settings of the run, whose batch size is the first.
        price: r, in examples per step.
        how: see :class:`~cbs.schedules.batch_size.Looking`.
    """
    r = number("price", price)

    def decide(examples: int, seen: Observed) -> Stage:
        if seen.low is None:
            return seen.stage
        return how.stage(run, max(FEWEST, round(math.sqrt(r * seen.low))))

    return how.loop(run, NOISE_SCALE, decide)
