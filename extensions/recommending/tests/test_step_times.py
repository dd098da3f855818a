"""Step times of real trials, and what happens when memory ends."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from analysis.read import throughput
from analysis.read.throughput import read_throughput
from cbs.errors import ConfigError, ResultsError
from cbs.training.loop import TrainingLoop
from cbs.trial.config import Choice
from cbs.trial.record import TrialStatus
from cbs.trial.step_times import StepTime
from cbs.trial.store import Store
from extensions.recommending.step_times import ROUNDS, SLOW_ROUNDS, examples_of, measure_throughput
from tests.factories import quadratic, trial

QUADRATIC = quadratic("adamw", {"dimension": 4}, target=1e-9, lr=1e-2, batch_size=8, seed=0, max_steps=10)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two optimizers; the first trial of one of them did not reach its target."""
    store = Store(tmp_path / "sweep")
    store.prepare()
    store.write_manifest({"name": "quadratic", "recipe": "quadratic", "protocol": {"prune_factor": None}})
    for name, lr, status in (
        ("adamw", 1e-3, TrialStatus.BUDGET_EXHAUSTED),
        ("adamw", 1e-2, TrialStatus.REACHED),
        ("muon", 1e-2, TrialStatus.REACHED),
    ):
        config = dataclasses.replace(QUADRATIC, optimizer=Choice(name=name), lr=lr, batch_size=8 if lr > 5e-3 else 4)
        store.save(trial(config, [(0, 1.0), (5, 0.5)], status))
    return store.root


def test_every_optimizer_and_batch_size_is_timed() -> None:
    seen: list[StepTime] = []
    configs = [QUADRATIC, dataclasses.replace(QUADRATIC, optimizer=Choice(name="muon"))]
    found = measure_throughput(configs, [16, 4, 4], seconds=0.02, report=seen.append)
    assert set(found) <= set(seen)
    assert all(timing.interval[0] <= timing.seconds <= timing.interval[1] for timing in found)
    assert [(timing.optimizer, timing.batch_size) for timing in found] == [
        ("adamw", 4), ("adamw", 16), ("muon", 4), ("muon", 16)
    ]  # fmt: skip
    assert all(0 < timing.seconds < 1 for timing in found)


def test_seconds_are_those_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances 0.1 s in a training step of 8 examples and 0.2 s in one of 16."""
    clock = [0.0]

    def step(loop: TrainingLoop, number: int) -> float:
        clock[0] += loop.config.batch_size / 80
        return 0.0

    monkeypatch.setattr(TrainingLoop, "train_step", step)
    monkeypatch.setattr("extensions.recommending.step_times.time.perf_counter", lambda: clock[0])
    seen: list[StepTime] = []
    found = measure_throughput([QUADRATIC], [8, 16], seconds=3.0, report=seen.append)
    assert [timing.seconds for timing in found] == [pytest.approx(0.1), pytest.approx(0.2)]
    assert {timing.repetitions for timing in found} == {ROUNDS}
    # in turn, so that a busy minute falls on all of them
    assert [timing.repetitions for timing in seen] == [done for done in range(1, ROUNDS + 1) for _ in found]
    assert {timing.repetitions for timing in measure_throughput([QUADRATIC], [8], seconds=0.2)} == {SLOW_ROUNDS}


def test_the_spread_of_the_repetitions_is_their_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which the rounds take 1, 2, 4, 2 and 1 times as long; Student's t by scipy."""
    clock, built = [0.0], []
    start = TrainingLoop.__init__

    def counted(loop: TrainingLoop, *arguments: Any) -> None:
        built.append(loop)
        start(loop, *arguments)

    def step(loop: TrainingLoop, number: int) -> float:
        clock[0] += 0.01 * (1, 2, 4, 2, 1)[len(built) - 1]
        return 0.0

    monkeypatch.setattr(TrainingLoop, "__init__", counted)
    monkeypatch.setattr(TrainingLoop, "train_step", step)
    monkeypatch.setattr("extensions.recommending.step_times.time.perf_counter", lambda: clock[0])
    (found,) = measure_throughput([QUADRATIC], [8], seconds=3.0)
    logs = np.log([0.01, 0.02, 0.04, 0.02, 0.01])
    assert found.seconds == pytest.approx(np.exp(logs.mean()))
    assert found.interval == pytest.approx(np.exp(stats.t.interval(0.95, 4, logs.mean(), stats.sem(logs))))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_unavailable_and_larger_ones_are_not_tried(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried = []
    whole = TrainingLoop.train_step

    def step(loop: TrainingLoop, number: int) -> float:
        tried.append(loop.config.batch_size)
        if loop.config.batch_size > 8:
            raise error
        return whole(loop, number)

    monkeypatch.setattr(TrainingLoop, "train_step", step)
    found = measure_throughput([QUADRATIC], [8, 16, 32], seconds=0.01)
    assert [math.isinf(timing.seconds) for timing in found] == [False, True, True]
    assert set(tried) == {8, 16}


@pytest.mark.parametrize(("sizes", "seconds"), [([], 1.0), ([0], 1.0), ([8], 0.0)])
def test_values_out_of_their_domain_are_refused(sizes: list[int], seconds: float) -> None:
    with pytest.raises(ConfigError):
        measure_throughput([QUADRATIC], sizes, seconds=seconds)


def test_a_folder_of_results_gives_a_trial_per_optimizer_that_reached_its_target(results: Path) -> None:
    found, batch_sizes = examples_of(str(results))
    assert {config.optimizer.name: config.lr for config in found} == {"adamw": 1e-2, "muon": 1e-2}
    assert batch_sizes == [4, 8]


def test_a_source_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a folder of results nor a recipe"):
        examples_of("quik")
    with pytest.raises(ResultsError, match="no sweep"):
        examples_of(str(tmp_path))
    store = Store(tmp_path)
    store.prepare()
    store.write_manifest({"name": "empty", "recipe": "empty", "protocol": {"prune_factor": None}})
    with pytest.raises(ResultsError, match="no trial yet"):
        examples_of(str(tmp_path))


@pytest.mark.usefixtures("children_here")
def test_the_command_writes_a_table_that_recommend_reads(
    run, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "SHRINKING", 0.0)  # a busy machine measures anything in a hundredth of a second
    table = tmp_path / "t.csv"
    code, out, err = run("throughput", results, "-o", table, "--batch-sizes", "2..8", "--seconds", 0.01)
    assert (code, out) == (0, f"{table}\nnext: cbs recommend {results} --throughput {table}\n")
    assert "adamw, batch size 8:" in err
    rows = read_throughput(table).rows
    assert {(row.optimizer, row.batch_size) for row in rows} == {
        (name, size) for name in ("adamw", "muon") for size in (2, 4, 8)
    }
    assert {row.devices for row in rows} == {1}
