"""``cbs recommend`` from a folder of results to one clear line; step times of real trials, and what happens when memory
ends."""

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import stats

from analysis import present
from analysis.present import presentation
from analysis.present.figures import figures_of
from analysis.read import throughput
from analysis.read.throughput import StepTime, read_throughput
from cbs.errors import ConfigError, ResultsError
from cbs.training.loop import TrainingLoop
from cbs.trial.config import Choice
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from extensions.recommending.plans import Wish
from extensions.recommending.recommendations import recommend
from extensions.recommending.step_times import (
    ROUNDS,
    SLOW_ROUNDS,
    examples_of,
    measure_throughput,
    write_step_times,
)
from tests.analysis.conftest import sketches as sketches
from tests.analysis.questions.test_compare import ASSUMED, FAST, written
from tests.analysis.questions.test_compare import situation as situation
from tests.analysis.questions.test_compare import two as two
from tests.factories import Truth, quadratic, sweep, trial
from tests.test_malicious import code_of_the_folder
from tests.test_malicious import world as world


def test_every_situation_is_advised_drawn_and_written_as_strict_json(
    situation: tuple, sketches: dict[str, Figure], tmp_path: Path
) -> None:
    name, root = situation
    report = recommend(root, ASSUMED, Wish(devices=4, price_ratio=2.0), FAST)
    able = name not in ("nothing reached", "one batch size")
    drawn = written(report, "recommendation.json", sketches, tmp_path / "out")
    assert drawn == (["recommendation", "time_factors"] if able else [])
    (only,) = report.recommendations
    assert bool(only.winners) == able
    assert any(advice.plans for advice in only.advice) == able
    for advice in only.advice:
        curve = advice.answer.draws is not None
        assert set(advice.plans) == ({"time", "cost", "examples", "priced"} if curve else set())
        assert curve or "without a curve" in advice.remarks[-1]
    assert (pd.read_csv(tmp_path / "out" / "recommendations.csv").shape[0] > 0) == able


def test_the_best_optimizer_is_told_with_its_probability(two: Path, tmp_path: Path) -> None:
    report = recommend(two, ASSUMED, Wish(devices=4), FAST)
    present.write(report, tmp_path, figures=None)
    for best in report.recommendations[0].winners:
        assert best.optimizer == "muon"
        assert best.probability > 0.95
    rows = pd.read_csv(tmp_path / "recommendations.csv")
    assert rows.loc[rows["best_optimizer"], "optimizer"].unique().tolist() == ["muon"]
    assert (rows["seconds_low"] < rows["seconds"]).all()
    assert (rows["seconds"] < rows["seconds_high"]).all()


def test_recommend_on_the_command_line(two: Path, run: Callable, tmp_path: Path) -> None:
    options = ("--throughput", two / "throughput.csv", "-o", tmp_path, "--resamples", 200)
    code, out, err = run("recommend", two, "--devices", 4, "--price", 2, "--price-ratio", 3, "--wide", *options)
    assert (code, err) == (0, "")
    assert "validation loss < 2.4, up to 4 devices [95 % interval]" in out
    assert "of the steps alone: the spread of the step times is unknown" in " ".join(out.split())
    assert re.search(r"least time: muon, with probability [>.\d ]+ if the step times are\s+exact", out)
    code, out, _ = run("recommend", two, "--devices", 4, "--json", "--figures", "none", *options)
    (found,) = json.loads(out)["recommendations"]
    assert found["target"] == {"metric": "validation_loss", "value": 2.4, "direction": "below"}
    assert {plan["objective"] for plan in found["optimizers"][0]["plans"]} == {"time", "cost", "examples"}
    assert found["optimizers"][0]["plans"][0]["cost"] is None


def test_the_recommendation_is_told_without_colour_and_shows_its_data(two: Path) -> None:
    report = recommend(two, ASSUMED, Wish(devices=4), FAST)
    picture = next(picture for picture in figures_of(report) if picture.name == "recommendation")
    figure = picture.kind.figure(picture.table)
    for advice, axes in zip([report.recommendations[0].advice] * 2, figure.axes, strict=False):
        assert len(axes.texts) == len(advice)
        named = " ".join(text.get_text() for text in axes.texts)
        assert all(entry.optimizer in named for entry in advice)
        lines = {str(line._unscaled_dash_pattern) for line in axes.lines if len(line.get_xdata()) > 20}
        assert len(lines) == len(advice)
        points = picture.table[(picture.table["kind"] == "point") & (picture.table["panel"] == axes.get_title())]
        measured = {point.batch_size for entry in advice for point in entry.answer.points if point.reached}
        assert set(points["batch_size"]) <= measured
        stars = [line for line in axes.lines if line.get_marker() == "*"]
        best = picture.table[(picture.table["kind"] == "best") & (picture.table["panel"] == axes.get_title())]
        assert [line.get_xdata()[0] for line in stars] == best["batch_size"].tolist()
    cheap = picture.table[(picture.table["objective"] == "time") & (picture.table["kind"] == "point")]
    adamw = report.recommendations[0].advice[0]
    for row in cheap[cheap["optimizer"] == adamw.optimizer].itertuples():
        (point,) = [entry for entry in adamw.answer.points if entry.batch_size == row.batch_size]
        seconds = ASSUMED.seconds_per_step("adamw", np.array([float(point.batch_size)]), int(row.devices))[0]
        assert row.value == pytest.approx(point.steps_to_target * seconds)


def test_where_nothing_can_be_recommended_the_screen_says_so_first(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": Truth(noise=0.04)}, batch_sizes=(16,), seeds=2)
    table = presentation(recommend(tmp_path, ASSUMED, Wish(devices=1), FAST)).shown[0]
    assert not isinstance(table, str)
    assert table.lines[0] == "no batch size can be recommended"


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_range_within_5_percent_says_that_it_is_read_off_the_curve(seeds: int, tmp_path: Path) -> None:
    truth = {"adamw": Truth(noise=0.02)}
    sweep(tmp_path, truth, batch_sizes=(8, 16, 32, 64, 128, 256, 512), seeds=seeds)
    table = presentation(recommend(tmp_path, ASSUMED, Wish(devices=1), FAST)).shown[0]
    assert not isinstance(table, str)
    assert any("read off the curve" in line for line in table.lines) is (seeds == 1), table.lines
    # a screen leaves out the last lines, and the mark in the table needs its meaning
    assert table.lines[1].startswith("*: a better one may lie beyond")


@pytest.mark.usefixtures("children_here")
def test_code_runs_once_it_is_named_on_the_command_line(world, run) -> None:
    store, outside = world
    code_of_the_folder(store, outside)
    for name in ("torch", "sweeps", "sitecustomize"):
        (Path.cwd() / f"{name}.py").unlink()
    code, _, err = run("throughput", store.root, "--code", "another:run")
    assert code == 2
    assert "--code evil:run" in err
    assert not (outside / "ran").exists()
    code, _, err = run("throughput", store.root, "--code", "evil:run")
    assert code == 2  # it is no workload, but it was asked
    assert (outside / "ran").exists()


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


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.builds(
            StepTime,
            batch_size=st.integers(1, 2**40),
            devices=st.integers(1, 10**6),
            seconds=st.floats(1e-9, 1e9),
            optimizer=st.sampled_from(["", "adamw", "muon(momentum=0.9, a=1)", 'a "quoted", name']),
        ),
        min_size=1,
        unique_by=lambda row: (row.optimizer, row.devices),
    )
)
def test_what_is_written_is_read_again(tmp_path: Path, rows: list[StepTime]) -> None:
    write_step_times(rows, tmp_path / "folder" / "t.csv")
    assert list(read_throughput(tmp_path / "folder" / "t.csv").rows) == rows
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["t.csv"]
