"""A table of stages in a file, written by ``cbs schedule plan --export transformers`` and followed by a training
loop.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbs.errors import ConfigError, DataError, reason
from cbs.schedules.batch_size import OpenLoop, RunSettings, Stage
from cbs.schedules.batch_size.base import number, of_table, whole
from cbs.trial.config import Schedule


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The batch sizes of a run, and its end.

    Attributes:
        starts: examples at which each stage begins, increasing from 0.
        stages: the stages, one per entry of ``starts``.
        examples: budget; the run ends with the last step that fits.
    """

    starts: tuple[int, ...]
    stages: tuple[Stage, ...]
    examples: int

    @property
    def schedule(self) -> OpenLoop:
        """The plan as a schedule of :mod:`cbs.schedules.batch_size`."""
        run = RunSettings(batch_size=self.stages[0].batch_size, examples=self.examples, lr_schedule=Schedule())
        table = zip(self.starts, self.stages, strict=True)
        return of_table(run, ((start, stage.batch_size, stage.lr_factor) for start, stage in table))


def plan_to_text(plan: BatchPlan) -> str:
    """Return a plan as JSON, one line per stage."""
    rows = ",\n  ".join(
        json.dumps({"examples": start, "batch_size": stage.batch_size, "lr_factor": stage.lr_factor})
        for start, stage in zip(plan.starts, plan.stages, strict=True)
    )
    return f'{{"stages": [\n  {rows}\n], "examples": {plan.examples}}}\n'


def plan_from_text(text: str) -> BatchPlan:
    """Return the plan in a text that :func:`plan_to_text` or a user wrote; ``lr_factor`` is 1 by default.

    Raises:
        ConfigError: if it is not a plan, or its stages do not follow one another from 0.
    """
    try:
        content = json.loads(text)
        examples = whole("examples", content["examples"])
        starts = tuple(whole("examples", row["examples"], least=0) for row in content["stages"])
        stages = tuple(_stage(row) for row in content["stages"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(
            f"not a plan of batch sizes, as cbs schedule plan --export transformers writes it: "
            f"{type(error).__name__}: {reason(error)}"
        ) from None
    if not starts or starts[0] != 0 or list(starts) != sorted(set(starts)):
        raise ConfigError(f"the stages of a plan must begin at 0 and follow one another, these begin at {list(starts)}")
    return BatchPlan(starts=starts, stages=stages, examples=examples)


def read_plan(path: str | Path) -> BatchPlan:
    """Read the plan in a file.

    Raises:
        DataError: if the file cannot be read.
        ConfigError: if it is not a plan.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the plan {path}: {reason(error)}") from None
    return plan_from_text(text)


def _stage(row: Any) -> Stage:
    return Stage(whole("batch_size", row["batch_size"]), number("lr_factor", row.get("lr_factor", 1.0)))
