"""What a table of stages implies: steps in each, and what they save, without any measurement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.json_values import shown
from cbs.errors import ConfigError, DataError, reason
from cbs.registry.values import parse_amount
from cbs.schedules.batch_size import RunSettings, of_table
from cbs.trial.config import Schedule
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
        return Path(table).read_text() if Path(table).is_file() else table
    except (OSError, ValueError) as error:
        if len(table.splitlines()) > 1 or ":" in table:
            return table
        raise DataError(f"cannot read {table}: {reason(error)}") from None


MEASURED = (".json", ".parquet", ".csv", ".tsv")
"""Ends of the names of files with measurements, see :func:`extensions.schedules.plan.answer.sources`."""


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
