r"""Batch size warmup: double when the critical batch size exceeds twice the batch (Merrill et al., arXiv 2505.23971).

When the local critical batch size exceeds twice the batch size, the batch size doubles and the learning rate grows by
:math:`\sqrt 2`. The paper measures the local critical batch size by branched training. Here it is estimated by the
noise scale times a ratio that has to be measured once; the *lower* end of the noise scale's interval is used.
"""

from __future__ import annotations

from cbs.schedules.batch_size import (
    BATCH_SCHEDULES,
    NOISE_SCALE,
    ClosedLoop,
    Looking,
    Observed,
    RunSettings,
    Stage,
    looking,
    number,
)


@BATCH_SCHEDULES.register("doubling")
@looking(lr_exponent=0.5)
def doubling(run: RunSettings, *, ratio: float = 1.0, how: Looking) -> ClosedLoop:
    """Return a rule that doubles the batch size at most once per observation.

    Args:
        run: settings of the run, whose batch size is the first.
        ratio: ratio of critical batch size to noise scale.
        how: see :class:`~cbs.schedules.batch_size.Looking`.
    """
    share = number("ratio", ratio)

    def decide(examples: int, seen: Observed) -> Stage:
        twice = 2 * seen.stage.batch_size
        grows = seen.low is not None and share * seen.low > twice and (how.cap is None or twice <= how.cap)
        return how.stage(run, twice) if grows else seen.stage

    return how.loop(run, NOISE_SCALE, decide, from_examples=run.lr_schedule.warmup_examples)
