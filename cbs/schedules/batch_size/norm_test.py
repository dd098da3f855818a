r"""Grow when the noise of the batch outweighs its gradient: the norm test (Byrd et al. 2012; arXiv 2412.21124).

The test :math:`\mathrm{tr}\,\Sigma / B \le \theta^2 |g|^2` fails when :math:`B < B_\mathrm{simple}/\theta^2`; the batch
size then grows to that value. In the variant for other geometries (Naganuma et al., arXiv 2602.03001) the noise scale
in the dual norm of the optimizer replaces :math:`B_\mathrm{simple}`, and the learning rate grows as the square root of
the batch size. The *lower* end of the noise scale's interval is used.
"""

from __future__ import annotations

import math

from cbs.schedules.batch_size import (
    BATCH_SCHEDULES,
    MATCHED_NOISE_SCALE,
    NOISE_SCALE,
    ClosedLoop,
    Looking,
    Observed,
    RunSettings,
    Stage,
    looking,
    number,
)


@BATCH_SCHEDULES.register("norm_test")
@looking()
def norm_test(run: RunSettings, *, theta: float = 0.3, how: Looking) -> ClosedLoop:
    """Return the norm test in the Euclidean norm; the batch size never falls.

    Args:
        run: settings of the run, whose batch size is the first.
        theta: largest ratio of the noise to the gradient's norm, in (0, 1).
        how: see :class:`~cbs.schedules.batch_size.Looking`.
    """
    return _test(run, NOISE_SCALE, theta, how)


@BATCH_SCHEDULES.register("dual_norm")
@looking(lr_exponent=0.5)
def dual_norm(run: RunSettings, *, theta: float = 0.6, how: Looking) -> ClosedLoop:
    """Return the norm test in the geometry of the optimizer; the batch size never falls.

    Args:
        run: settings of the run, whose batch size is the first.
        theta: largest ratio of the noise to the gradient's dual norm, in (0, 1); 0.6 in the paper.
        how: see :class:`~cbs.schedules.batch_size.Looking`; the paper observes every 100 steps.
    """
    return _test(run, MATCHED_NOISE_SCALE, theta, how)


def _test(run: RunSettings, looks_at: str, theta: float, how: Looking) -> ClosedLoop:
    share = number("theta", theta, below=1.0)

    def decide(examples: int, seen: Observed) -> Stage:
        if seen.low is None:
            return seen.stage
        asked = how.stage(run, math.ceil(seen.low / share**2))
        return asked if asked.batch_size > seen.stage.batch_size else seen.stage

    return how.loop(run, looks_at, decide, from_examples=run.lr_schedule.warmup_examples)
