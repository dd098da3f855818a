r"""Growth that waits for the gradient to become small (Umeda and Iiduka, arXiv 2508.05302).

As soon as :math:`|\nabla f| \le \epsilon_m` the batch size grows by :math:`\delta` and the learning rate by
:math:`\gamma`, and :math:`\epsilon_{m+1} = \epsilon_0 \sqrt{b_0/b_{m+1}}`. There the gradient of all data is evaluated
every 1000 steps and not counted; here :math:`|\nabla f|^2` is the mean of the unbiased estimates of the probe, and the
*upper* end of its interval must be below :math:`\epsilon_m^2`.
"""

from __future__ import annotations

import math

from cbs.batch_schedules import BATCH_SCHEDULES
from cbs.batch_schedules.base import GRAD_SQ_NORM, ClosedLoop, Observed, Run, Stage, cap_of, number
from cbs.batch_schedules.growth import checked_growth, grown


@BATCH_SCHEDULES.register("growth_by_gradient")
def growth_by_gradient(
    run: Run,
    *,
    first_norm: float,
    delta: float = 2.0,
    gamma: float = 1.4,
    cap: int | None = 4096,
    measurements: int = 100,
    confidence: float = 0.95,
) -> ClosedLoop:
    """Growth by the norm of the gradient.

    Args:
        run: starts with its own batch size.
        first_norm: epsilon_0, the norm of the gradient at which the first growth happens.
        delta, gamma, cap: see :mod:`cbs.batch_schedules.growth`.
        measurements, confidence: see :class:`~cbs.batch_schedules.base.ClosedLoop`.
    """
    delta, gamma = checked_growth(delta, gamma)
    first, limit = number("first_norm", first_norm), cap_of(run, cap)

    def decide(examples: int, seen: Observed) -> Stage:
        stage = seen.stage
        if seen.high is None or (limit is not None and stage.batch_size >= limit):
            return stage
        if seen.high > first**2 * run.batch_size / stage.batch_size:
            return stage
        growths = round(math.log(stage.batch_size / run.batch_size) / math.log(delta)) + 1
        return Stage(*grown(run, growths, delta, gamma, limit))

    return ClosedLoop(
        first=Stage(run.batch_size),
        looks_at=GRAD_SQ_NORM,
        decide=decide,
        measurements=measurements,
        confidence=confidence,
    )
