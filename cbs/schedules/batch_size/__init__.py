"""Batch-size schedules: the number of examples in the next step; found by name.

Not to be confused with :mod:`cbs.schedules.learning_rate`, the schedules of the learning rate. A rule maps the examples
seen so far, and for closed-loop rules the measured gradient noise, to a batch size and a factor of the learning rate.
It does not use the number of steps, so its boundaries do not depend on earlier batch sizes.
"""

import functools
import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cbs.errors import ConfigError
from cbs.registry import ImportFallback, Registry, values
from cbs.registry.choices import Choice, spread
from cbs.schedules.learning_rate import Multiplier
from cbs.trial.config import Schedule

NOISE_SCALE, MATCHED_NOISE_SCALE, GRAD_SQ_NORM = "noise_scale", "matched_noise_scale", "grad_sq_norm"
"""Quantities that a closed-loop rule may observe: tr(Sigma)/|G|^2 in examples; the noise scale in the optimizer's own
geometry, in examples; |G|^2."""

FEWEST = 2  # Smallest batch whose noise can be measured; a closed-loop rule never goes below
LEAST_MEASUREMENTS = 20  # With fewer measured steps there is no interval, see :mod:`cbs.noise_scale.interval`


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of the run that a schedule is made for.

    Attributes:
        batch_size: batch size of the trial, with which it starts.
        examples: budget of the trial in examples.
        lr_schedule: schedule of its learning rate.
        tokens_per_example: number of tokens in an example; ``None`` where that has no meaning.
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
        lr_factor: factor of the learning-rate schedule's value.
    """

    batch_size: int
    lr_factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What a closed-loop rule observes.

    Attributes:
        stage: current stage.
        low, value, high: the observed quantity with its interval; ``None`` for an open end or an undefined value.
    """

    stage: Stage
    low: float | None
    value: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class OpenLoop:
    """A table of stages: a step has the latest stage that begins at or before the examples seen before the step.

    >>> doubled = OpenLoop(starts=(0, 1000), stages=(Stage(8), Stage(16, lr_factor=1.4)))
    >>> doubled.stage(999), doubled.stage(1000)
    (Stage(batch_size=8, lr_factor=1.0), Stage(batch_size=16, lr_factor=1.4))

    Attributes:
        starts: examples at which each stage begins, increasing from 0.
        stages: the stages, one per entry of ``starts``.
        multiplier: replaces the trial's learning-rate schedule; ``None`` keeps that schedule.
    """

    starts: tuple[int, ...]
    stages: tuple[Stage, ...]
    multiplier: Multiplier | None = None

    def stage(self, examples: int) -> Stage:
        """Return the stage of the step that begins after this many examples."""
        return self.stages[bisect_right(self.starts, examples) - 1]

    def steps(self, examples: int) -> list[int]:
        """Return the number of steps in each stage of a run with this budget of examples, shape ``[stages]``.

        The run ends with the last step that fits into the budget.
        """
        seen, counts, room = 0, [], True
        for stage, end in zip(self.stages, (*self.starts[1:], max(examples, self.starts[-1])), strict=True):
            wanted, fitting = -(-(end - seen) // stage.batch_size), (examples - seen) // stage.batch_size
            counts.append(max(0, min(wanted, fitting)) if room else 0)
            seen += counts[-1] * stage.batch_size
            room = room and wanted <= fitting
        return counts


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """A rule that observes the run after every ``measurements`` measured steps.

    >>> def decide(examples, seen):
    ...     surely_larger = seen.low is not None and seen.low > seen.stage.batch_size
    ...     return Stage(2 * seen.stage.batch_size) if surely_larger else seen.stage
    >>> rule = ClosedLoop(first=Stage(8), looks_at=NOISE_SCALE, decide=decide, measurements=50)
    >>> rule.decide(4000, Observed(stage=rule.first, low=9.0, value=20.0, high=None)).batch_size
    16

    Attributes:
        first: the first stage.
        looks_at: the observed quantity, one of the names above.
        measurements: number of measured steps between two observations; an observation uses only these steps.
        from_examples: number of examples before which the rule does not observe.
        confidence: confidence level of the observed interval.
        decide: function ``(examples, observed) -> stage`` that returns the stage of the next steps; a trial calls it
            after every observation.
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
    """Return the schedule of computed stages, without those that no step would be in.

    A boundary is moved to the next whole example, and further if the stage before it would be shorter than one batch of
    the stage before that: such a stage could be jumped over. If another boundary has passed by then, the later one
    counts.

    Args:
        run: settings of the run, whose budget ends the table.
        table: for each stage, the examples at which it begins, its batch size, and its factor of the learning rate.
        multiplier: see :class:`OpenLoop`.
    """
    kept: list[tuple[int, Stage]] = []
    for start, batch_size, factor in table:
        begin, stage = math.ceil(start), Stage(batch_size, factor)
        if kept and begin <= kept[-1][0]:
            kept[-1] = (kept[-1][0], stage)
            continue
        if len(kept) > 1:  # a stage takes one step at least
            begin = max(begin, kept[-1][0] + kept[-2][1].batch_size)
        if begin >= run.examples:
            break
        if not kept or stage != kept[-1][1]:
            kept.append((begin, stage))
    return OpenLoop(
        starts=tuple(start for start, _ in kept), stages=tuple(stage for _, stage in kept), multiplier=multiplier
    )


def joined(sizes: Sequence[int], base: int, exponent: float) -> list[float]:
    """Return factors of the learning rate that follow the batch size: ``(size / base) ** exponent``."""
    return [(size / base) ** exponent for size in sizes]


def scaled(run: RunSettings, batch_size: int, exponent: float) -> Stage:
    """Return a stage whose learning-rate factor is a power of its batch size relative to the run's own."""
    return Stage(batch_size, joined([batch_size], run.batch_size, exponent)[0])


def capped(batch_size: int, cap: int | None) -> int:
    """Return ``batch_size``, at most ``cap``."""
    return batch_size if cap is None else min(batch_size, cap)


def whole(name: str, value: object, *, least: int = 1) -> int:
    """Check an option that is an integer, see :func:`cbs.registry.values.whole`."""
    return values.whole(f"{name} of a batch schedule", value, least=least)


def number(name: str, value: object, *, above: float = 0.0, below: float = math.inf) -> float:
    """Check an option that is a number, see :func:`cbs.registry.values.number`."""
    return values.number(f"{name} of a batch schedule", value, above=above, below=below)


def exponent(value: object) -> float:
    """Check ``lr_exponent``: 0 keeps the learning rate, 0.5 is the square-root rule, 1 the linear rule.

    Raises:
        ConfigError: if it is not between -1 and 1.
    """
    if not values.is_number(value) or not -1.0 <= value <= 1.0:
        raise ConfigError(f"lr_exponent of a batch schedule must be between -1 and 1, got {value!r}")
    return float(value)


def cap_of(run: RunSettings, cap: object) -> int | None:
    """Check the largest batch size that a schedule may reach; ``None`` for no limit.

    Raises:
        ConfigError: if it is below the batch size that the run starts with.
    """
    return None if cap is None else whole("cap", cap, least=run.batch_size)


BATCH_SCHEDULES: Registry[Callable[..., BatchSchedule]] = Registry(
    "batch schedule", "cbs.schedules.batch_size", makes=BatchSchedule
)
"""Entries are called as ``entry(run, *, option=default, ...)`` and return the schedule of a run."""

BATCH_SCHEDULES.fallback = ImportFallback("batch schedule")
__all__ = [
    "BATCH_SCHEDULES",
    "ClosedLoop",
    "OpenLoop",
    "RunSettings",
    "Stage",
    "batch_schedule_options",
    "build_batch_schedule",
]


def build_batch_schedule(choice: Choice | None, run: RunSettings) -> BatchSchedule:
    """Build the schedule that a configuration names, for one run; ``None`` is ``constant``.

    Raises:
        ConfigError: if the name or an option is unknown, or an option is missing or does not suit the run.
    """
    if choice is None:
        choice = Choice(name="constant")
    schedule: BatchSchedule = BATCH_SCHEDULES.make(choice.name, run, **choice.options)
    if isinstance(schedule, ClosedLoop) and run.batch_size < FEWEST:
        raise ConfigError(
            f"batch schedule {choice.name!r} compares the examples of a batch, so start from {FEWEST} or more; "
            f"the batch size is {run.batch_size}"
        )
    return schedule


def batch_schedule_options(*names: str) -> list[str]:
    """Return the options of the batch schedules with these names, or of all, sorted."""
    entries = [BATCH_SCHEDULES[name] for name in names or BATCH_SCHEDULES.names()]
    return sorted({option for entry in entries for option in [*inspect.signature(entry).parameters][1:]})


@dataclass(frozen=True, kw_only=True)
class Looking:
    """How a rule observes the run, and how far it may go.

    Attributes:
        cap: largest batch size.
        lr_exponent: the learning rate follows the batch size with this power.
        measurements: number of measured steps between two observations.
        confidence: confidence level of the interval of which one end is used.
    """

    cap: int | None = None
    lr_exponent: float = 0.0
    measurements: int = 100
    confidence: float = 0.95

    def stage(self, run: RunSettings, batch_size: int) -> Stage:
        """Return the stage of a requested batch size, limited to the cap."""
        return scaled(run, capped(batch_size, self.cap), self.lr_exponent)

    def loop(
        self, run: RunSettings, looks_at: str, decide: Callable[[int, Observed], Stage], *, from_examples: int = 0
    ) -> ClosedLoop:
        """Return the rule, which starts with the batch size of the run."""
        cap_of(run, self.cap)
        exponent(self.lr_exponent)
        return ClosedLoop(
            first=Stage(run.batch_size),
            looks_at=looks_at,
            decide=decide,
            measurements=self.measurements,
            from_examples=from_examples,
            confidence=self.confidence,
        )


looking = functools.partial(spread, Looking, "how")
"""Decorates a rule ``(run, *, option=..., how: Looking)``, see :func:`cbs.registry.choices.spread`."""
