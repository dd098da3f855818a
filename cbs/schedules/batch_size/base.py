"""What a batch-size schedule is: a table of stages, or a rule that looks at the run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cbs.errors import ConfigError
from cbs.registry import domains
from cbs.schedules.learning_rate import Multiplier
from cbs.trial.config import Schedule

NOISE_SCALE, MATCHED_NOISE_SCALE, GRAD_SQ_NORM = "noise_scale", "matched_noise_scale", "grad_sq_norm"
"""What a closed-loop rule may look at: tr(Sigma)/|G|^2 in examples; the noise scale in the optimizer's own geometry, in
examples; |G|^2."""

FEWEST = 2
"""Examples of a batch whose noise can be measured; a closed-loop rule never goes below."""

LEAST_MEASUREMENTS = 20
"""Fewer have no interval, see :mod:`cbs.noise_scale.interval`."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a schedule is made for.

    Attributes:
        batch_size: the trial's own, with which it starts.
        examples: its budget.
        lr_schedule: of its learning rate.
        tokens_per_example: ``None`` where that means nothing.
    """

    batch_size: int
    examples: int
    lr_schedule: Schedule
    tokens_per_example: int | None = None


@dataclass(frozen=True)
class Stage:
    """Consecutive steps with one batch size and one factor of the learning rate.

    Attributes:
        batch_size: examples per step.
        lr_factor: multiplies what the learning-rate schedule says.
    """

    batch_size: int
    lr_factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What a closed-loop rule sees when it looks.

    Attributes:
        stage: in force so far.
        low, value, high: the quantity it looks at, with its interval; ``None`` where an end is open, or undefined.
    """

    stage: Stage
    low: float | None
    value: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class OpenLoop:
    """A table: the stage of a step is the latest that begins at or before the examples seen ahead of it.

    >>> doubled = OpenLoop(starts=(0, 1000), stages=(Stage(8), Stage(16, lr_factor=1.4)))
    >>> doubled.stage(999), doubled.stage(1000)
    (Stage(batch_size=8, lr_factor=1.0), Stage(batch_size=16, lr_factor=1.4))

    Attributes:
        starts: examples at which each stage begins, increasing from 0.
        stages: likewise.
        multiplier: takes the place of the trial's learning-rate schedule; ``None`` leaves that as it is.
    """

    starts: tuple[int, ...]
    stages: tuple[Stage, ...]
    multiplier: Multiplier | None = None

    def stage(self, examples: int) -> Stage:
        """The stage of the step that begins after so many examples."""
        return self.stages[bisect_right(self.starts, examples) - 1]

    def steps(self, examples: int) -> list[int]:
        """Steps in each stage of a run of so many examples at most, shape ``[stages]``; a run ends with the last step
        that fits."""
        seen, counts, room = 0, [], True
        for stage, end in zip(self.stages, (*self.starts[1:], max(examples, self.starts[-1])), strict=True):
            wanted, fitting = -(-(end - seen) // stage.batch_size), (examples - seen) // stage.batch_size
            counts.append(max(0, min(wanted, fitting)) if room else 0)
            seen += counts[-1] * stage.batch_size
            room = room and wanted <= fitting
        return counts


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """A rule that looks at the run each time so many of its steps have been measured.

    >>> def decide(examples, seen):
    ...     surely_larger = seen.low is not None and seen.low > seen.stage.batch_size
    ...     return Stage(2 * seen.stage.batch_size) if surely_larger else seen.stage
    >>> rule = ClosedLoop(first=Stage(8), looks_at=NOISE_SCALE, decide=decide, measurements=50)
    >>> rule.decide(4000, Observed(stage=rule.first, low=9.0, value=20.0, high=None)).batch_size
    16

    Attributes:
        first: the stage it starts with.
        looks_at: one of the names above.
        measurements: measured steps from one look to the next; a look sees these alone.
        from_examples: there is no look before.
        confidence: of the interval it sees.
        decide: ``(examples, observed) -> stage`` of the coming steps; a trial calls it when it has looked.
    """

    first: Stage
    looks_at: str
    decide: Callable[[int, Observed], Stage]
    measurements: int = 100
    from_examples: int = 0
    confidence: float = 0.95
    multiplier: Multiplier | None = None

    def __post_init__(self) -> None:
        whole("measurements", self.measurements, least=LEAST_MEASUREMENTS)
        number("confidence", self.confidence, below=1.0)


BatchSchedule = OpenLoop | ClosedLoop


def of_table(
    run: RunSettings, table: Iterable[tuple[float, int, float]], *, multiplier: Multiplier | None = None
) -> OpenLoop:
    """The schedule of computed stages; those that no step would be in are left out.

    A boundary is put off to the next whole example, and as long as the stage before it is shorter than one batch of the
    one before that: such a stage could be jumped over. Where another boundary has passed meanwhile, that one counts.

    Args:
        run: whose budget ends the table.
        table: examples at which a stage begins, its batch size, and its factor of the learning rate.
        multiplier: see :class:`OpenLoop`.
    """
    kept: list[tuple[int, Stage]] = []
    for start, batch_size, factor in table:
        begin, stage = math.ceil(start), Stage(batch_size, factor)
        if kept and begin <= kept[-1][0]:
            kept[-1] = (kept[-1][0], stage)
            continue
        if len(kept) > 1:
            begin = max(begin, kept[-1][0] + kept[-2][1].batch_size)
        if begin >= run.examples:
            break
        if not kept or stage != kept[-1][1]:
            kept.append((begin, stage))
    return OpenLoop(
        starts=tuple(start for start, _ in kept), stages=tuple(stage for _, stage in kept), multiplier=multiplier
    )


def joined(sizes: Sequence[int], base: int, exponent: float) -> list[float]:
    """Factors of the learning rate that follow the batch size: ``(size / base) ** exponent``."""
    return [(size / base) ** exponent for size in sizes]


def scaled(run: RunSettings, batch_size: int, exponent: float) -> Stage:
    """A stage whose learning rate follows the batch size as a power, from the run's own."""
    return Stage(batch_size, joined([batch_size], run.batch_size, exponent)[0])


def capped(batch_size: int, cap: int | None) -> int:
    """``batch_size``, at most ``cap``."""
    return batch_size if cap is None else min(batch_size, cap)


def whole(name: str, value: object, *, least: int = 1) -> int:
    """An option that is a whole number, see :func:`cbs.registry.domains.whole`."""
    return domains.whole(f"{name} of a batch schedule", value, least=least)


def number(name: str, value: object, *, above: float = 0.0, below: float = math.inf) -> float:
    """An option that is a number, see :func:`cbs.registry.domains.number`."""
    return domains.number(f"{name} of a batch schedule", value, above=above, below=below)


def exponent(value: object) -> float:
    """``lr_exponent``: 0 leaves the learning rate alone, 0.5 is the square-root rule, 1 the linear one.

    Raises:
        ConfigError: if it is not between -1 and 1.
    """
    if not domains.is_number(value) or not -1.0 <= value <= 1.0:
        raise ConfigError(f"lr_exponent of a batch schedule must be between -1 and 1, got {value!r}")
    return float(value)


def cap_of(run: RunSettings, cap: object) -> int | None:
    """The largest batch size a schedule may reach; ``None`` for any.

    Raises:
        ConfigError: if it is below the batch size the run starts with.
    """
    return None if cap is None else whole("cap", cap, least=run.batch_size)
