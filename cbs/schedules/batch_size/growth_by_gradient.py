r"""Growth that waits for the gradient to become small (Umeda and Iiduka, arXiv 2508.05302).

As soon as :math:`|\nabla f| \le \epsilon_m` the batch size grows by :math:`\delta` and the learning rate by
:math:`\gamma`, and :math:`\epsilon_{m+1} = \epsilon_0 \sqrt{b_0/b_{m+1}}`. The paper evaluates the gradient of all data
every 1000 steps and does not count this cost. Here :math:`|\nabla f|^2` is the mean of the unbiased estimates of the
probe, and the *upper* end of its interval must be below :math:`\epsilon_m^2`.
"""

from __future__ import annotations

import math

from cbs.schedules.batch_size import (
    BATCH_SCHEDULES,
    GRAD_SQ_NORM,
    ClosedLoop,
    Looking,
    Observed,
    RunSettings,
    Stage,
    looking,
    number,
)
from cbs.schedules.batch_size.growth import checked_growth, grown


@BATCH_SCHEDULES.register("growth_by_gradient")
@looking(without=("lr_exponent",), cap=4096)
def growth_by_gradient(
    run: RunSettings, *, first_norm: float, delta: float = 2.0, gamma: float = 1.4, how: Looking
) -> ClosedLoop:
    """Return a rule that grows batch size and learning rate when the gradient's norm falls.

    Args:
        run: settings of the run, whose batch size is the first.
        first_norm: epsilon_0, the norm of the gradient at which the first growth happens.
        delta: factor of the batch size at each growth, above 1.
        gamma: factor of the learning rate, below the square root of ``delta``.
        how: see :class:`~cbs.schedules.batch_size.Looking`; ``gamma`` sets the learning rate.
    """
    delta, gamma = checked_growth(delta, gamma)
    first = number("first_norm", first_norm)

    def decide(examples: int, seen: Observed) -> Stage:
        stage = seen.stage
        if seen.high is None or (how.cap is not None and stage.batch_size >= how.cap):
            return stage
        if seen.high > first**2 * run.batch_size / stage.batch_size:
            return stage
        growths = round(math.log(stage.batch_size / run.batch_size) / math.log(delta)) + 1
        return Stage(*grown(run, growths, delta, gamma, how.cap))

    return how.loop(run, GRAD_SQ_NORM, decide)
