"""Rules that grow the batch by the noise scale that a run measures."""

import math

from cbs.schedules.batch_size import (
    BATCH_SCHEDULES,
    FEWEST,
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


# Batch size warmup: double when the critical batch size exceeds twice the batch (Merrill et al., arXiv 2505.23971).
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
        # The lower end of the interval: a batch that grew by chance would not shrink again.
        twice = 2 * seen.stage.batch_size
        grows = seen.low is not None and share * seen.low > twice and (how.cap is None or twice <= how.cap)
        return how.stage(run, twice) if grows else seen.stage

    return how.loop(run, NOISE_SCALE, decide, from_examples=run.lr_schedule.warmup_examples)


# The best batch size for a noise scale and a price of a step (McCandlish et al. 2018, arXiv 1812.06162, D.6).
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


# Grow when the noise of the batch outweighs its gradient: the norm test (Byrd et al. 2012; arXiv 2412.21124).
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
