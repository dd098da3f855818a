"""Schedules as trainers write them: what is written is read back, and what a trainer cannot do is said."""

import dataclasses
import itertools
import shlex
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.quantities import UNKNOWN, Quantity
from cbs.errors import ConfigError
from cbs.schedules.batch_size import RunSettings, of_table
from cbs.trial.config import Schedule
from extensions.schedules.plan.stages import stages
from extensions.schedules.trainers import ReadSchedule, ScheduleExport, read_schedule, write_schedule

TOLD = ScheduleExport(
    table=((0, 16), (1000, 32), (5000, 128)), steps=(63, 125, 39), examples=10_000, tokens_per_example=64,
    optimizer="adamw", lr_factors=(UNKNOWN,) * 3,
)  # fmt: skip


def test_megatrons_arguments() -> None:
    # NVIDIA/Megatron-LM, pull request 4411: thresholds in tokens, batch sizes in samples
    text = '--step-batch-size-schedule "0:16 64000:32 320000:128" --seq-length 64 --train-samples 10000\n'
    assert write_schedule("megatron", TOLD) == text
    published = '--step-batch-size-schedule "0:768 250B:1536 500B:3072 750B:6144"'
    table = ((0, 768), (250 * 10**9, 1536), (500 * 10**9, 3072), (750 * 10**9, 6144))
    assert read_schedule(published, 1000) == ReadSchedule(table=table)
    # no thresholds in samples: it makes samples of them by its own sequence length, whatever was meant
    with pytest.raises(ConfigError, match="by its own --seq-length: give --tokens-per-example"):
        read_schedule(published)
    # of tokens it makes whole samples, rounded down
    assert read_schedule('--step-batch-size-schedule "0:8 100:16" --seq-length 64').table == ((0, 8), (1, 16))


def test_olmo_cores_callback() -> None:
    # allenai/OLMo-core, train/callbacks/batch_size_scheduler.py: sizes and places in tokens
    text = (
        "BatchSizeSchedulerCallback(  # it multiplies the learning rate by the root of the batch size's factor by "
        "itself\n    batch_sizes=[1024, 2048, 8192],\n"
        "    schedule=[Duration.tokens(0), Duration.tokens(65536), Duration.tokens(327680)],\n)\n"
        "global_batch_size = 1024  # of the data loader; another value changes the learning rate\n"
        "max_duration = Duration.tokens(638976)\n"
    )
    assert write_schedule("olmo-core", TOLD) == text
    assert read_schedule(text, 64) == ReadSchedule(table=((0, 16), (65_536, 32), (327_680, 128)), end=638_976)


def olmo_cores_steps(text: str, tokens: int) -> dict[int, int]:
    """By batch size, as its trainer takes them: it steps while the tokens seen are below max_duration, and before every
    step increases the batch size to that of the latest stage that is due, if the batches done divide by the factor."""
    shown = read_schedule(text, tokens)
    assert shown.end is not None
    size, seen, done, counts = shown.table[0][1], 0, 0, {size: 0 for _, size in shown.table}
    while seen < shown.end:
        (due,) = [size for start, size in shown.table if start <= seen][-1:]
        if done % (due // size) == 0:
            size, done = due, done // (due // size)
        counts[size] += 1
        seen, done = seen + size * tokens, done + 1
    return counts


def test_olmo_core_switches_where_it_is_written_and_ends_with_the_last_step_that_fits() -> None:
    for examples in (10_000, 10_001, 10_111, 10_112):
        text = write_schedule("olmo-core", dataclasses.replace(TOLD, examples=examples))
        # 1000 / 16 = 62.5 steps and 4000 / 32 = 125 wait for 64 and for 128, with which batches of 32 and 128 are whole
        steps = {16: 64, 32: 128, 128: 38 + (examples == 10_112)}
        assert olmo_cores_steps(text, 64) == steps
        assert {stage.batch_size: stage.steps for stage in stages(text, tokens_per_example=64).stages} == steps


def test_levanters_configuration() -> None:
    # levanter/schedule.py: places are steps
    text = write_schedule("levanter", TOLD)
    entries = "  - start: 0\n    value: 16\n  - start: 63\n    value: 32\n  - start: 188\n    value: 128\n"
    assert text == f"trainer:\n  train_batch_size:\n{entries}  num_train_steps: 227\n"
    found = read_schedule(text)
    assert found == ReadSchedule(
        table=((0, 16), (63 * 16, 32), (63 * 16 + 125 * 32, 128)), end=63 * 16 + 125 * 32 + 39 * 128
    )
    constant = read_schedule("trainer:\n  train_batch_size: 512\n  num_train_steps: 3\n")
    assert constant == ReadSchedule(table=((0, 512),), end=1536)


def test_torchtitans_runs() -> None:
    # pytorch/torchtitan: tokens per step, steps of all runs so far; the flags parse with its own configuration classes
    text = write_schedule("torchtitan", TOLD)
    kept = "--checkpoint.enable --checkpoint.no-last-save-model-only --lr_scheduler.total_steps 227"
    assert text.splitlines()[:1] == ["#!/usr/bin/env bash"]
    assert "changes no batch size within a run" in text.splitlines()[1]
    assert text.splitlines()[2:] == [
        "set -e",
        *(
            f'./run_train.sh "$@" {kept} --training.num_tokens_per_train_step {tokens} --training.steps {end}'
            for tokens, end in ((1024, 63), (2048, 188), (8192, 227))
        ),
    ]
    table = ((0, 16), (63 * 16 * 64, 32), ((63 * 16 + 125 * 32) * 64, 128))
    assert read_schedule(text, 64) == ReadSchedule(table=table, end=(63 * 16 + 125 * 32 + 39 * 128) * 64)
    spread = text.replace(" --training", " \\\n  --training").replace("steps 63", "steps=63")
    assert read_schedule(spread, 64) == read_schedule(text, 64)


def megatrons_steps(text: str) -> dict[int, int]:
    """By batch size, as its training loop counts them: steps until the samples are consumed, of the size in force."""
    words = shlex.split(text)
    length, samples = (int(words[words.index(flag) + 1]) for flag in ("--seq-length", "--train-samples"))
    table = [tuple(map(int, entry.split(":"))) for entry in words[1].split()]
    seen, counts = 0, dict.fromkeys((size for _, size in table), 0)
    while seen < samples:
        size = [size for start, size in table if start // length <= seen][-1]
        seen, counts[size] = seen + size, counts[size] + 1
    return counts


@pytest.mark.parametrize("examples", [10_000, 10_001, 10_127, 10_128])
def test_megatron_takes_the_steps_of_the_plan_and_not_one_more(examples: int) -> None:
    run = RunSettings(batch_size=16, examples=examples, lr_schedule=Schedule())
    counts = of_table(run, ((start, size, 1.0) for start, size in TOLD.table)).steps(examples)
    told = dataclasses.replace(TOLD, steps=tuple(counts), examples=examples)
    text = write_schedule("megatron", told)
    assert list(megatrons_steps(text).values()) == counts
    # what a person wrote runs on to the end of the step in which the samples are consumed
    typed = text.rsplit(" ", 1)[0] + f" {examples}"
    shown = stages(typed, tokens_per_example=64)
    assert {stage.batch_size: stage.steps for stage in shown.stages} == megatrons_steps(typed)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 6)), min_size=1, max_size=6), st.sampled_from([None, 32]))
def test_what_is_written_is_read_with_the_same_steps(parts: list[tuple[int, int]], tokens: int | None) -> None:
    size, start, table = 4, 0, []
    for count, factor in parts:
        table.append((start, size, 1.0))
        start, size = start + count * size, size * factor
    schedule = of_table(RunSettings(batch_size=4, examples=start + 1, lr_schedule=Schedule()), table)
    told = dataclasses.replace(
        TOLD, table=tuple((at, stage.batch_size) for at, stage in zip(schedule.starts, schedule.stages, strict=True)),
        steps=tuple(schedule.steps(start + 1)), examples=start + 1, tokens_per_example=tokens,
        lr_factors=(UNKNOWN,) * len(schedule.starts),
    )  # fmt: skip
    for trainer in ("levanter", *(["megatron", "torchtitan"] if tokens else [])):
        shown = stages(write_schedule(trainer, told), tokens_per_example=tokens)
        assert [stage.steps for stage in shown.stages] == list(told.steps), trainer
        assert [stage.batch_size for stage in shown.stages] == [size for _, size in told.table]
    if tokens:
        with suppress(ConfigError):
            text = write_schedule("olmo-core", told)
            shown = stages(text, tokens_per_example=tokens)
            assert {stage.batch_size: stage.steps for stage in shown.stages} == olmo_cores_steps(text, tokens)
            late = [stage.start // tokens - start for stage, (start, _) in zip(shown.stages, told.table, strict=True)]
            assert all(0 <= each < after for each, (_, after) in zip(late, told.table, strict=True))


@pytest.mark.parametrize(
    ("trainer", "changes", "said"),
    [
        ("megatron", {"tokens_per_example": None}, "--tokens-per-example"),
        ("torchtitan", {"tokens_per_example": None}, "--tokens-per-example"),
        ("nemo", {}, "unknown trainer 'nemo': .*levanter, megatron, olmo-core, torchtitan"),
        ("olmo-core", {"tokens_per_example": None}, "--tokens-per-example"),
        ("olmo_core", {"optimizer": "muon"}, "not of muon"),
        ("olmo_core", {"optimizer": ""}, "give --optimizer"),
        ("olmo_core", {"table": ((0, 16), (1000, 24))}, "16 to 24 is none"),
        ("olmo_core", {"lr_factors": (Quantity(1.0, (1.0, 1.0)), *[Quantity(1.1, (1.0, 1.2))] * 2)}, "is planned"),
    ],
)
def test_what_a_trainer_cannot_do_is_one_line(trainer: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        write_schedule(trainer, dataclasses.replace(TOLD, **changes))
    assert len(str(error.value).splitlines()) == 1


BROKEN = [
    '--step-batch-size-schedule "0:8 4:x"',
    "--step-batch-size-schedule",
    '--step-batch-size-schedule "0:8 100:16" --seq-length many',
    '--step-batch-size-schedule "0:8 10:16" --seq-length 64 --train-samples "',
    "BatchSizeSchedulerCallback(batch_sizes=[8], schedule=[Duration.steps(0)])",
    "BatchSizeSchedulerCallback(batch_sizes=[8, 16], schedule=[Duration.tokens(0)])",
    "BatchSizeSchedulerCallback(batch_sizes=[7], schedule=[Duration.tokens(0)])",
    "BatchSizeSchedulerCallback(",
    "trainer: {train_batch_size: [{start: 5, value: 8}]}",
    "trainer: {train_batch_size: [{start: 0, value: 8}, {start: 0, value: 16}]}",
    "trainer: {train_batch_size: [{until: 5, value: 8}]}",
    "trainer: [train_batch_size",
    "x --training.num_tokens_per_train_step 64",
    "x --training.num_tokens_per_train_step 63 --training.steps 5",
    "x --training.num_tokens_per_train_step 64 --training.steps many",
    "x --training.num_tokens_per_train_step -1 --training.steps 5",
    "x --training.num_tokens_per_train_step 64 --training.steps 5\n" * 2,
    '{"stages": []',
    '{"stages": [{"examples": 3, "batch_size": 4}], "examples": 9}',
    "0:8 0:16",
    "nothing",
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_text_that_cannot_be_read_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_schedule(text, 8)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "table",
    [
        ((0, 16), (1000, 32), (4000, 128)),
        ((0, 4), (10, 8), (30, 16), (99, 64)),
        ((0, 32), (100, 16), (300, 64), (999, 8)),
    ],
)
def test_olmo_core_waits_until_the_batches_done_are_whole_ones_of_the_next_size(
    table: tuple[tuple[int, int], ...],
) -> None:
    text = write_schedule(
        "olmo-core", dataclasses.replace(TOLD, table=table, steps=(), lr_factors=(UNKNOWN,) * len(table))
    )
    seen, done, starts = 0, 0, [0]
    for (_, size), (start, after) in itertools.pairwise(table):
        while seen < start or done * size % after:
            seen, done = seen + size, done + 1
        done = done * size // after
        starts.append(64 * seen)
    assert [start for start, _ in read_schedule(text, 64).table] == starts
