"""Stages of a plan: which batch sizes it may use, that of every phase, and the steps that a table implies and saves."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.estimate.time_curves import candidates
from analysis.formatting import number, plural, shown
from analysis.quantities import Array
from analysis.read.cells import LARGEST
from cbs.errors import ConfigError, DataError, reason
from cbs.files import whole
from cbs.registry.values import parse_amount
from cbs.schedules.batch_size import RunSettings, of_table
from cbs.trial.config import Schedule
from extensions.schedules.plan.phases import PhaseSource, doubled, lower_ends
from extensions.schedules.plan.plans import PlanRequest
from extensions.schedules.trainers import read_schedule


@dataclass(frozen=True, kw_only=True)
class StageSteps:
    """One stage, from ``start`` in the unit of the table; ``share`` is its fraction of all examples."""

    start: int
    batch_size: int
    steps: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Stages:
    """A table of stages over a budget in the same ``unit``, ``examples`` or ``tokens``.

    ``constant`` is, for each of its batch sizes, the fraction of that constant batch size's steps that the table saves;
    negative if it takes more.
    """

    unit: str
    tokens_per_example: int | None
    budget: int
    stages: tuple[StageSteps, ...]
    steps: int
    constant: dict[int, float]

    def to_json(self) -> dict[str, Any]:
        return shown(self) | {"constant": {str(size): saved for size, saved in self.constant.items()}}


def _text(table: str) -> str:
    """Return the content of the file of this name, or the text itself if there is no such file."""
    try:
        return whole(Path(table)).read_text() if Path(table).is_file() else table
    except (OSError, ValueError) as error:
        if len(table.splitlines()) > 1 or ":" in table:
            return table
        raise DataError(f"cannot read {table}: {reason(error)}") from None


MEASURED = (".json", ".parquet", ".csv", ".tsv")
"""Ends of the names of files with measurements, see :func:`extensions.schedules.plan.planning.sources`."""


def is_table(text: str) -> bool:
    """Return whether a text is a table of stages, or the name of a file that contains one, but not of a folder or of a
    file with measurements."""
    try:
        if Path(text).is_dir() or Path(text).suffix in MEASURED:
            return False
        return Path(text).is_file() or re.search(r"[:\s=]", text) is not None
    except (OSError, ValueError):  # too long for a file name, or not a valid one
        return True


def stages(table: str, budget: str | None = None, *, tokens_per_example: int | None = None) -> Stages:
    """Return the steps of every stage; a stage begins with the first step at or after its start.

    ``table`` is a text as for :func:`.trainers.read_schedule`, or the path of a file with one. Its unit is tokens if
    ``tokens_per_example`` is given, else examples; the run ends at ``budget`` in that unit, or where the text says.

    Raises:
        ConfigError: if the table or the budget is refused, or a stage begins beyond the budget.
        DataError: if the file cannot be read.
    """
    if tokens_per_example is not None and tokens_per_example < 1:
        raise ConfigError(f"--tokens-per-example must be at least 1, got {tokens_per_example}")
    read = read_schedule(_text(table), tokens_per_example)
    parsed, end = list(read.table), read.end if budget is None else parse_amount(budget)
    if end is None:
        raise ConfigError("the end of the run is not given: give --budget, in the unit of the table")
    each = tokens_per_example or 1
    if end // each < parsed[0][1]:
        raise ConfigError(f"the budget of {end:,} holds no batch of {parsed[0][1]} examples")
    if parsed[-1][0] >= end:
        raise ConfigError(f"the stage that begins at {parsed[-1][0]:,} begins beyond the budget of {end:,}")
    run = RunSettings(batch_size=parsed[0][1], examples=end // each, lr_schedule=Schedule())
    starts = [-(-start // each) for start, _ in parsed]
    for (start, size), (later, _), before in zip(parsed[1:], [*parsed[2:], (end, 0)], parsed, strict=False):
        if (later - start) // each < before[1]:
            raise ConfigError(
                f"the stage of batch size {size} at {start:,} is shorter than one batch of the stage before it "
                f"({before[1]}): it might be skipped"
            )
    schedule = of_table(run, ((start, size, 1.0) for start, (_, size) in zip(starts, parsed, strict=True)))
    counts = schedule.steps(run.examples)
    seen = sum(count * stage.batch_size for count, stage in zip(counts, schedule.stages, strict=True))
    sizes = sorted({stage.batch_size for stage in schedule.stages})
    return Stages(
        unit="examples" if tokens_per_example is None else "tokens",
        tokens_per_example=tokens_per_example,
        budget=end,
        stages=tuple(
            StageSteps(
                start=start * each, batch_size=stage.batch_size, steps=count, share=count * stage.batch_size / seen
            )
            for start, stage, count in zip(schedule.starts, schedule.stages, counts, strict=True)
        ),
        steps=sum(counts),
        constant={size: 1.0 - sum(counts) / (seen / size) for size in sizes},
    )


# If batch sizes have no measured end, they extend to this multiple of the largest critical batch size, or of the
# price.
_OPEN = 4.0


def price_of(source: PhaseSource, ask: PlanRequest) -> tuple[float | None, str]:
    """Return the number of examples that a step is worth (``None`` if time decides), and the criterion in words.

    Under the rule ``doubling`` it only determines which constant batch size is compared with the plan. Raise
    ``ConfigError`` if it is unknown.
    """
    if ask.rule == "doubling":
        first = ask.first_batch_size
        rule_text = f"doubles from {first} where the lower end of the critical batch size exceeds twice the batch"
        return source.critical or float(first or 1), rule_text
    rule_text = "lower end of the batch size that is best for each phase: "
    if ask.price is not None:
        return ask.price, f"{rule_text}a step is worth {number(ask.price)} examples"
    if ask.throughput is not None:
        return None, f"{rule_text}least time on {plural(ask.devices, 'device')}"
    if source.critical is None:
        raise ConfigError(
            f"{source.optimizer or source.what}: the critical batch size is unknown, so there is no price of a step: "
            "give it in examples per step: --rule 'price(step_price=1000)'"
        )
    return source.critical, f"{rule_text}a step is worth {number(source.critical)} examples, the critical batch size"


def allowed(source: PhaseSource, ask: PlanRequest, price: float | None) -> Array:
    """Return the candidate batch sizes, shape ``[M]``, increasing; raise ``ConfigError`` if there is none."""
    low, high = source.measured
    if not math.isfinite(high):
        known = [phase.critical.interval[1] or phase.critical.value or 0.0 for phase in source.phases]
        high = _OPEN * max(*known, price or 0.0)
        if high > LARGEST:
            raise ConfigError(
                f"batch sizes up to {high:.3g} are too many to compare: is the price, or a critical batch size, right?"
            )
    if ask.throughput is not None:
        span = ask.throughput.span(source.optimizer, ask.devices)
        if span is None:
            raise ConfigError(f"there is no step time for {source.optimizer or 'this run'}")
        low, high = max(low, span[0]), min(high, span[1])
    high = min(high, ask.max_batch_size or math.inf)
    first = ask.first_batch_size
    if first is not None and not low <= first <= high:
        raise ConfigError(f"first_batch_size={first} of --rule doubling is not between {low:g} and {high:g}")
    step = ask.divisible_by or source.grain
    sizes = candidates(low / step, high / step) * step
    if not len(sizes):
        raise ConfigError(
            f"no multiple of {step} lies between {low:g} and {high:g}, the batch sizes that are known and allowed"
        )
    return sizes


def seconds(source: PhaseSource, ask: PlanRequest, sizes: Array) -> Array:
    """Return the seconds per step at each batch size, shape ``[M]``."""
    assert ask.throughput is not None
    return ask.throughput.seconds_per_step(source.optimizer, sizes, ask.devices)


def chosen(
    source: PhaseSource, ask: PlanRequest, sizes: Array, steps: Array, cost: Array, confidence: float
) -> tuple[Array, list[str]]:
    """Return the batch size of every phase, and remarks.

    ``steps`` in every phase (see :func:`.phases.steps_of`) and ``cost`` per step are given over ``sizes``; the lower
    end of the interval at ``confidence`` decides.
    """
    if ask.rule == "doubling":
        first = float(ask.first_batch_size or 1)
        steps_up = doubled(source.phases, first, float(sizes[-1]))
        more = 2 * steps_up[-1]
        if doubled(source.phases, first, more)[-1] < more:
            return steps_up, []
        why = "allowed" if more > (ask.max_batch_size or math.inf) else "known"
        return steps_up, [f"batch size {steps_up[-1]:g} stays at the end, where the rule asks for more than is {why}"]
    best, notes = lower_ends(sizes[(steps * cost).argmin(axis=2)], confidence), []  # the smallest of ties
    if len(sizes) > 1 and best[-1] == sizes[-1]:
        why = (
            "allowed" if sizes[-1] + (ask.divisible_by or source.grain) > (ask.max_batch_size or math.inf) else "known"
        )
        notes.append(f"batch size {sizes[-1]:g} is the largest that is {why}: a larger one may be better at the end")
    if len(sizes) > 1 and best[0] == sizes[0]:
        notes.append(f"batch size {sizes[0]:g} is the smallest that is known: a smaller one may be better at the start")
    return best, notes
