"""Schedules as trainers write them, and tables of stages as persons do."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.extensions.schedule_plan.stages import stages
from analysis.extensions.schedule_plan.trainers import TRAINERS, ScheduleExport
from cbs.errors import ConfigError
from cbs.schedules.batch_size.base import RunSettings, of_table
from cbs.trial.config import Schedule

TOLD = ScheduleExport(table=((0, 16), (1000, 32), (5000, 128)), steps=(63, 125, 39), tokens_per_example=64)


def test_megatrons_arguments() -> None:
    # NVIDIA/Megatron-LM, pull request 4411: thresholds in tokens, batch sizes in samples
    text = '--step-batch-size-schedule "0:16 64000:32 320000:128" --seq-length 64 --train-samples 10000\n'
    megatron = TRAINERS["megatron"]()
    assert megatron.write(TOLD) == text
    # no thresholds in samples: it makes samples of them by its own sequence length, whatever was meant
    with pytest.raises(ConfigError, match="by its own --seq-length: give --tokens-per-example"):
        megatron.write(dataclasses.replace(TOLD, tokens_per_example=None))


def megatrons_steps(text: str) -> list[int]:
    """By stage, as its training loop counts them: steps until the samples are consumed, of the size in force."""
    words = shlex.split(text)
    length, samples = (int(words[words.index(flag) + 1]) for flag in ("--seq-length", "--train-samples"))
    table = [tuple(map(int, entry.split(":"))) for entry in words[1].split()]
    seen, counts = 0, [0] * len(table)
    while seen < samples:
        stage = [index for index, (start, _) in enumerate(table) if start // length <= seen][-1]
        seen, counts[stage] = seen + table[stage][1], counts[stage] + 1
    return counts


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(0, 30),
)
def test_megatron_takes_the_steps_of_the_plan_and_not_one_more(parts: list[tuple[int, int, int]], rest: int) -> None:
    size, start, table = 4, 0, []
    for count, factor, odd in parts:
        table.append((start, size, 1.0))
        start, size = start + count * size + odd, size * factor
    examples = start + rest
    schedule = of_table(RunSettings(batch_size=4, examples=examples, lr_schedule=Schedule()), table)
    counts = schedule.steps(examples)
    sizes = [stage.batch_size for stage in schedule.stages]
    told = ScheduleExport(
        table=tuple(zip(schedule.starts, sizes, strict=True)), steps=tuple(counts), tokens_per_example=64
    )
    assert megatrons_steps(TRAINERS["megatron"]().write(told)) == list(counts)


@pytest.mark.parametrize("text", ["0:8 0:16", "nothing", "3:8", "0:8 4:x", "0:0"])
def test_a_table_that_cannot_be_read_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        stages(text, "100")
    assert len(str(error.value).splitlines()) == 1


def test_a_table_needs_the_end_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --budget"):
        stages("0:8 1K:16", None)
    path = tmp_path / "schedule.txt"
    path.write_text("0:16 1000:32 5000:128\n")
    assert stages(str(path), "10_000").steps == 227
    with pytest.raises(ConfigError, match="beyond the budget"):
        stages(str(path), "5000")
