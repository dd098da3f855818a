r"""The batch size that the noise scale and the price of a step ask for (McCandlish et al. 2018, arXiv 1812.06162, D.6).

:math:`B = \sqrt{r\, B_\mathrm{simple}}`, with r the examples that one step less is worth. The noise scale counts with
the *lower* end of its interval, so that noise in the measurement does not make the batch larger than it pays.
"""

from __future__ import annotations

import math

from cbs.batch_schedules import BATCH_SCHEDULES
from cbs.batch_schedules.base import (
    FEWEST,
    NOISE_SCALE,
    ClosedLoop,
    Observed,
    Run,
    Stage,
    cap_of,
    capped,
    exponent,
    number,
    scaled,
)


@BATCH_SCHEDULES.register("noise_rule")
def noise_rule(
    run: Run,
    *,
    price: float,
    cap: int | None = None,
    lr_exponent: float = 0.0,
    measurements: int = 100,
    confidence: float = 0.95,
) -> ClosedLoop:
    """The batch size follows the noise scale, upwards and downwards.

    Args:
        run: starts with its own batch size.
        price: r, in examples per step.
        cap: largest batch size.
        lr_exponent: the learning rate goes with this power of the batch size.
        measurements, confidence: see :class:`~cbs.batch_schedules.base.ClosedLoop`.
    """
    r, limit, power = number("price", price), cap_of(run, cap), exponent(lr_exponent)

    def decide(examples: int, seen: Observed) -> Stage:
        if seen.low is None:
            return seen.stage
        return scaled(run, capped(max(FEWEST, round(math.sqrt(r * seen.low))), limit), power)

    return ClosedLoop(
        first=Stage(run.batch_size), looks_at=NOISE_SCALE, decide=decide, measurements=measurements,
        confidence=confidence,
    )  # fmt: skip
