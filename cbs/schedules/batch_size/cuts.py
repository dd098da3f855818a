"""Points at which a learning-rate schedule has fallen by a factor, where a batch schedule can grow the batch
instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cbs.errors import ConfigError
from cbs.schedules.batch_size import RunSettings
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
