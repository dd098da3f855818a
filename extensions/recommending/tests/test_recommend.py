"""``cbs recommend`` from a folder of results to tables, files, figures and one clear line."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import present
from analysis.present import presentation
from analysis.present.figures import figures_of
from extensions.recommending.plans import Wish
from extensions.recommending.recommendations import recommend
from tests.analysis.conftest import sketches as sketches
from tests.analysis.questions.test_compare import ASSUMED, FAST, written
from tests.analysis.questions.test_compare import situation as situation
from tests.analysis.questions.test_compare import two as two
from tests.factories import Truth, sweep
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
        assert best.probability is not None
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
