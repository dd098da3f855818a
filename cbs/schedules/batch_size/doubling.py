r"""Double when the critical batch size has left the batch behind: batch size warmup (Merrill et al., arXiv 2505.23971).

When the local critical batch size exceeds twice the batch size, the batch size doubles and the learning rate grows by
:math:`\sqrt 2`. The paper measures the local critical batch size by branched training; here the noise scale stands for
it, times a ratio that people measure once. It counts with the *lower* end of its interval.
"""

from __future__ import annotations

from cbs.schedules.batch_size import BATCH_SCHEDULES
from cbs.schedules.batch_size.base import NOISE_SCALE, ClosedLoop, Observed, RunSettings, Stage, number
from cbs.schedules.batch_size.looking import Looking, looking


@BATCH_SCHEDULES.register("doubling")
@looking(lr_exponent=0.5)
def doubling(run: RunSettings, *, ratio: float = 1.0, how: Looking) -> ClosedLoop:
    """At most one doubling per look.

    Args:
        run: starts with its own batch size.
        ratio: critical batch size over noise scale.
        how: see :class:`~cbs.schedules.batch_size.looking.Looking`.
    """
    share = number("ratio", ratio)

    def decide(examples: int, seen: Observed) -> Stage:
        twice = 2 * seen.stage.batch_size
        grows = seen.low is not None and share * seen.low > twice and (how.cap is None or twice <= how.cap)
        return how.stage(run, twice) if grows else seen.stage

    return how.loop(run, NOISE_SCALE, decide, from_examples=run.lr_schedule.warmup_examples)
