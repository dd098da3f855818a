"""Rules that grow the batch where a learning-rate schedule would fall."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cbs.errors import ConfigError
from cbs.schedules.batch_size import BATCH_SCHEDULES, OpenLoop, RunSettings, cap_of, number, of_table
from cbs.schedules.learning_rate import Multiplier, build_schedule
from cbs.trial.config import Schedule

_LOOKS = 1000
"""Number of points at which a schedule is checked not to rise."""


def cut_points(run: RunSettings, factor: float, of: str) -> Iterator[float]:
    """Yield the examples at which the learning rate has fallen to ``factor ** -k`` of its peak, for k = 1, 2, ..., in
    the budget.

    Args:
        run: settings of the run with the learning-rate schedule.
        factor: factor of each cut, above 1.
        of: name of the batch schedule, for messages.

    Raises:
        ConfigError: if the learning rate does not fall, or rises again after its warmup.
    """
    falls, start, end = build_schedule(run.lr_schedule), run.lr_schedule.warmup_examples, run.examples
    if start >= end:
        raise ConfigError(f"batch schedule {of!r}: the warmup of {start:,} examples takes the budget of {end:,}")
    values = [falls(round(start + (end - start) * index / _LOOKS)) for index in range(_LOOKS + 1)]
    # A rise by rounding is none.
    if any(later > sooner * (1 + 1e-9) for sooner, later in itertools.pairwise(values)):
        raise ConfigError(
            f"batch schedule {of!r} needs a learning rate that only falls after its warmup; "
            f"schedule {run.lr_schedule.name!r} rises again"
        )
    if values[-1] > values[0] * (1 - 1e-9):
        raise ConfigError(
            f"batch schedule {of!r} replaces the learning rate's decay, but schedule "
            f"{run.lr_schedule.name!r} does not decay within {end:,} examples; "
            "use --set schedule.name=cosine --set schedule.decay_examples=..."
        )
    level = 1.0
    while True:
        level /= factor
        if falls(end) > level * (1 + 1e-12):
            return
        low, high = float(start), float(end)
        # Examples are whole numbers, so a quarter is fine enough.
        while high - low > 0.25:
            middle = (low + high) / 2
            low, high = (low, middle) if falls(middle) <= level * (1 + 1e-12) else (middle, high)  # type: ignore[arg-type]
        yield high


def warmup_alone(schedule: Schedule) -> Multiplier:
    """Return the learning-rate schedule without its decay."""
    return build_schedule(Schedule(name="constant", warmup_examples=schedule.warmup_examples))


def in_place_of_cuts(
    run: RunSettings, factor: float, lr_power: float, cap: int | None, of: str
) -> Iterator[tuple[float, int, float]]:
    """Yield stages for :func:`~cbs.schedules.batch_size.of_table` that replace cuts of the learning rate.

    At the k-th cut by ``factor`` the batch size grows by ``factor``, and the learning rate falls by ``factor **
    lr_power`` instead. Once the batch size is at the cap, or a step would take all remaining examples, the batch size
    stays, and the learning rate falls by the whole ``factor`` as in the original schedule.
    """
    size, rate = float(run.batch_size), 1.0
    yield 0.0, run.batch_size, rate
    for start in cut_points(run, factor, of):
        larger = round(size * factor)
        if (cap is not None and larger > cap) or larger > run.examples - start:
            rate /= factor
        else:
            size, rate = size * factor, rate / factor**lr_power
        # A schedule that ends at 0 has cuts without end.
        if rate < 1e-12:
            return
        yield start, round(size), rate


# Do not decay the learning rate, increase the batch size (Smith, Kindermans, Ying and Le, arXiv 1711.00489).
@BATCH_SCHEDULES.register("smith")
def smith(run: RunSettings, *, cut: float = 5.0, cap: int | None = None) -> OpenLoop:
    """Return stages whose batch size grows where the trial's learning-rate schedule would fall.

    Args:
        run: settings of the run with its learning-rate schedule, any that falls.
        cut: factor of the learning-rate cuts that are replaced, above 1.
        cap: largest batch size; beyond it the learning rate falls as in the original schedule.

    Raises:
        ConfigError: if a value is invalid, or the learning rate does not fall.
    """
    table = in_place_of_cuts(run, number("cut", cut, above=1.0), 0.0, cap_of(run, cap), "smith")
    return of_table(run, table, multiplier=warmup_alone(run.lr_schedule))


# Seesaw: cut the learning rate by the square root of the scheduled cut, grow the batch (Meterez et al., 2510.14717).
@BATCH_SCHEDULES.register("seesaw")
def seesaw(run: RunSettings, *, alpha: float = 2.0, cap: int | None = None) -> OpenLoop:
    """Return Seesaw for the trial's learning-rate schedule, any that falls.

    Args:
        run: settings of the run with its learning-rate schedule.
        alpha: factor of the learning-rate cuts that are replaced, above 1.
        cap: largest batch size; beyond it the learning rate falls as in the original schedule. A batch is never larger
            than the rest of the budget either.

    Raises:
        ConfigError: if a value is invalid, or the learning rate does not fall.
    """
    factor = number("alpha", alpha, above=1.0)
    table = in_place_of_cuts(run, factor, 0.5, cap_of(run, cap), "seesaw")
    return of_table(run, table, multiplier=warmup_alone(run.lr_schedule))
