r"""Double when the critical batch size has left the batch behind: batch size warmup (Merrill et al., arXiv 2505.23971).

When the local critical batch size exceeds twice the batch size, the batch size doubles and the learning rate grows by
:math:`\sqrt 2`. The paper measures the local critical batch size by branched training; here the noise scale stands for
it, times a ratio that people measure once. It counts with the *lower* end of its interval.
"""

from __future__ import annotations

from cbs.batch_schedules import BATCH_SCHEDULES
from cbs.batch_schedules.base import NOISE_SCALE, ClosedLoop, Observed, Run, Stage, cap_of, exponent, number, scaled


@BATCH_SCHEDULES.register("doubling")
def doubling(
    run: Run,
    *,
    ratio: float = 1.0,
    cap: int | None = None,
    lr_exponent: float = 0.5,
    measurements: int = 100,
    confidence: float = 0.95,
) -> ClosedLoop:
    """At most one doubling per look.

    Args:
        run: starts with its own batch size.
        ratio: critical batch size over noise scale.
        cap: largest batch size.
        lr_exponent: the learning rate goes with this power of the batch size.
        measurements, confidence: see :class:`~cbs.batch_schedules.base.ClosedLoop`.
    """
    share, limit, power = number("ratio", ratio), cap_of(run, cap), exponent(lr_exponent)

    def decide(examples: int, seen: Observed) -> Stage:
        twice = 2 * seen.stage.batch_size
        grows = seen.low is not None and share * seen.low > twice and (limit is None or twice <= limit)
        return scaled(run, twice, power) if grows else seen.stage

    return ClosedLoop(
        first=Stage(run.batch_size), looks_at=NOISE_SCALE, decide=decide, measurements=measurements,
        from_examples=run.lr_schedule.warmup_examples, confidence=confidence,
    )  # fmt: skip
