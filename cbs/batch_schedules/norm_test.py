r"""Grow when the noise of the batch outweighs its gradient: the norm test (Byrd et al. 2012; arXiv 2412.21124).

The test :math:`\mathrm{tr}\,\Sigma / B \le \theta^2 |g|^2` fails when :math:`B < B_\mathrm{simple}/\theta^2`; the batch
size then grows to that. Its kin in other geometries (Naganuma et al., arXiv 2602.03001) has the noise scale in the dual
norm of the optimizer in place of :math:`B_\mathrm{simple}`, and the learning rate grows by the root of the ratio.
Noise scales count with the *lower* end of their interval.
"""

from __future__ import annotations

import math

from cbs.batch_schedules import BATCH_SCHEDULES
from cbs.batch_schedules.base import (
    MATCHED_NOISE_SCALE,
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


@BATCH_SCHEDULES.register("norm_test")
def norm_test(
    run: Run,
    *,
    theta: float = 0.3,
    cap: int | None = None,
    lr_exponent: float = 0.0,
    measurements: int = 100,
    confidence: float = 0.95,
) -> ClosedLoop:
    """The norm test in the Euclidean norm; the batch size never falls.

    Args:
        run: starts with its own batch size.
        theta: the noise may be this share of the gradient, in (0, 1).
        cap: largest batch size.
        lr_exponent: the learning rate goes with this power of the batch size.
        measurements, confidence: see :class:`~cbs.batch_schedules.base.ClosedLoop`.
    """
    return _test(run, NOISE_SCALE, theta, cap, lr_exponent, measurements, confidence)


@BATCH_SCHEDULES.register("dual_norm")
def dual_norm(
    run: Run,
    *,
    theta: float = 0.6,
    cap: int | None = None,
    lr_exponent: float = 0.5,
    measurements: int = 100,
    confidence: float = 0.95,
) -> ClosedLoop:
    """The norm test in the geometry of the optimizer; the batch size never falls, and there is no look before the end
    of the warmup.

    Args:
        run: starts with its own batch size.
        theta: in (0, 1); 0.6 in the paper.
        cap: largest batch size.
        lr_exponent: the learning rate goes with this power of the batch size.
        measurements, confidence: see :class:`~cbs.batch_schedules.base.ClosedLoop`; the paper looks every 100 steps.
    """
    return _test(run, MATCHED_NOISE_SCALE, theta, cap, lr_exponent, measurements, confidence)


def _test(
    run: Run, looks_at: str, theta: float, cap: int | None, lr_exponent: float, measurements: int, confidence: float
) -> ClosedLoop:
    share, limit, power = number("theta", theta, below=1.0), cap_of(run, cap), exponent(lr_exponent)

    def decide(examples: int, seen: Observed) -> Stage:
        asked = 0 if seen.low is None else capped(math.ceil(seen.low / share**2), limit)
        return scaled(run, asked, power) if asked > seen.stage.batch_size else seen.stage

    return ClosedLoop(
        first=Stage(run.batch_size),
        looks_at=looks_at,
        decide=decide,
        measurements=measurements,
        from_examples=run.lr_schedule.warmup_examples,
        confidence=confidence,
    )
