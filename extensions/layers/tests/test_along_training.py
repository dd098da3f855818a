"""Largest attention logits, and what steps do to matrices, from the columns of the trials to the curves that are
drawn."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.estimate.result import Answer
from analysis.present import figures, style
from analysis.present.figures import FIGURES
from cbs.trial.trial_files import read_steps
from extensions.layers import along_training
from extensions.layers.along_training import POINTS, QUANTITIES, optimizer_steps
from extensions.layers.figures import compute_matrices
from tests.factories import Truth, attention_logit, sweep

FAST = AnalysisConfig(resamples=100)
FIGURE = FIGURES["max_attention_logit"]
LAYERS = Truth(noise=0.05, layers=3)
LRS = (1e-3, 2e-3, 4e-3)


def folder(path: Path, **columns: np.ndarray) -> Path:
    """A trial folder with these columns in its ``steps.parquet``."""
    path.mkdir()
    steps = np.arange(1, 1 + len(next(iter(columns.values()))))
    pq.write_table(pa.table({"step": steps, "train_loss": np.ones(len(steps)), **columns}), path / "steps.parquet")
    return path


def attention_logits(folders: list[Path], steps_to_target: list[float], batch_size: int) -> pd.DataFrame:
    columns = [read_steps(path / "steps.parquet")[0] for path in folders]
    return along_training.attention_logits(columns, steps_to_target, batch_size)


def test_median_and_range_over_seeds_of_the_largest_since_the_point_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    seeds = [rng.gamma(2.0, 10.0, length) for length in (500, 700, 600)]
    folders = [folder(tmp_path / str(i), max_attention_logit_layer_1=values) for i, values in enumerate(seeds)]
    table = attention_logits(folders, [450.5, 650.0, 600.0], 8)
    assert table["step"].iloc[[0, -1]].tolist() == [1, 451]
    assert len(table) <= POINTS
    before = 0
    for row in table.itertuples():
        each = [values[before : row.step].max() for values in seeds]
        assert (row.max_attention_logit, row.low, row.high) == (np.median(each), min(each), max(each))
        assert (row.examples, row.seeds, row.layer) == (8 * row.step, 3, 1)
        before = row.step


def test_the_peak_of_a_layer_is_its_largest_point_and_stands_in_the_answer(tmp_path: Path) -> None:
    seeds = [np.array([1.0, 4.0, 2.0]), np.array([1.0, 9.0, 3.0]), np.array([1.0, 6.0, 1.0])]
    folders = [folder(tmp_path / str(index), max_attention_logit_layer_1=each) for index, each in enumerate(seeds)]
    table = attention_logits(folders, [3.0, 3.0, 3.0], 8)
    (found,) = along_training.peaks(table, 0.95)
    assert (found["layer"], found["peak"], found["step"]) == (1, 6.0, 2)
    reach = 4.302652729749464 * np.log([4.0, 9.0, 6.0]).std(ddof=1) / math.sqrt(3)  # t at two degrees of freedom
    assert found["peak_interval"] == pytest.approx([6 * math.exp(-reach), 6 * math.exp(reach)])
    assert along_training.peaks(attention_logits(folders[:1], [3.0], 8), 0.95)[0]["peak_interval"] == [None, None]
    sweep(tmp_path / "sweep", {"adamw": LAYERS}, batch_sizes=(8, 32), lrs=LRS, growth=1.5, moments=True)
    (answer,) = analyze(tmp_path / "sweep", FAST).answers
    told = answer.to_json()["max_attention_logits"]
    assert [(row["batch_size"], row["layer"]) for row in told] == [(size, n) for size in (8, 32) for n in (1, 2, 3)]
    largest = answer.along["max_attention_logits"][32].groupby("layer")["max_attention_logit"].max()
    assert [row["peak"] for row in told[3:]] == largest.tolist()


def answers_of(root: Path) -> tuple[Answer, ...]:
    return analyze(root, FAST).answers


def test_first_and_last_layer_at_the_smallest_and_largest_shared_batch_size(tmp_path: Path) -> None:
    two = {"adamw": LAYERS, "merit": LAYERS}
    sweep(tmp_path, two, batch_sizes=(4, 16, 64), lrs=LRS, seeds=2, growth=1.3, moments=True)
    table = FIGURE.compute(answers_of(tmp_path))
    panels = [f"layer {layer}, batch size {size}" for layer in (1, 3) for size in (4, 64)]
    assert table["panel"].unique().tolist() == panels
    assert set(table["optimizer"]) == {"adamw", "merit"}
    assert table["lr"].isin(LRS).all()
    part = table[table["panel"] == panels[-1]].query("optimizer == 'merit'")
    np.testing.assert_allclose(part["low"], attention_logit(3, part["step"].to_numpy(), 0))
    np.testing.assert_allclose(part["high"], attention_logit(3, part["step"].to_numpy(), 1))
    np.testing.assert_array_equal(part["examples"], 64 * part["step"])
    drawing = FIGURE.figure(table)
    assert [axes.get_title() for axes in drawing.axes] == panels
    for axes in drawing.axes:
        assert [text.get_text() for text in axes.texts] == ["adamw", "merit"]
        assert [line.get_color() for line in axes.lines] == list(style.COLOURS[:2])
        assert len(axes.collections) == 2  # the ranges over seeds
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@pytest.mark.parametrize("values", [np.linspace(2.0, 6.0, 50), np.linspace(-1.0, 40.0, 50), np.full(50, 3.0)])
def test_the_axis_is_linear_within_a_decade_or_below_zero(values: np.ndarray, tmp_path: Path) -> None:
    curve = attention_logits([folder(tmp_path / "one", max_attention_logit_layer_1=values)], [50.0], 4)
    table = curve.assign(panel="layer 1, batch size 4", optimizer="merit", example_unit="sequence")
    (axes,) = FIGURE.figure(table).axes
    assert axes.get_yscale() == "linear"
    low, high = axes.get_ylim()
    assert low < values.min() <= values.max() < high
    assert math.isfinite(low + high)


@pytest.mark.parametrize("layers", [0, 1])
def test_drawn_where_a_trial_has_the_columns_and_left_out_otherwise(
    layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = {"adamw": dataclasses.replace(LAYERS, layers=layers)}
    sweep(tmp_path, truth, batch_sizes=(4, 64), lrs=LRS[:2], growth=1.5, moments=True)
    monkeypatch.setattr(figures, "FIGURES", {"max_attention_logit": FIGURE})
    pictures = figures.figures_of(analyze(tmp_path, FAST))
    written = [file for picture in pictures for file in picture.write(tmp_path / "figures")]
    names = [f"max_attention_logit.{suffix}" for suffix in ("pdf", "png", "csv")]
    assert [path.name for path in written] == (names if layers else [])
    assert sorted(path.name for path in (tmp_path / "figures").glob("*")) == sorted(path.name for path in written)
    if layers:
        drawn = pd.read_csv(tmp_path / "figures" / names[-1])
        assert drawn["panel"].unique().tolist() == ["layer 1, batch size 4", "layer 1, batch size 64"]


def matrix_columns(steps: int, scale: float, every: int = 1, **more: float) -> dict[str, np.ndarray]:
    at = np.arange(1.0, steps + 1)
    values = np.where((at - 1) % every == 0, scale * at, np.nan)
    return {"step": at, "train_loss": at, "weight_norm.a.b": values} | {f"{k}.a.b": v * values for k, v in more.items()}


def test_points_are_means_of_a_seed_and_medians_over_seeds_up_to_the_first_to_reach() -> None:
    table = optimizer_steps(
        [matrix_columns(4, 1.0), matrix_columns(3, 3.0), matrix_columns(9, 100.0)], [4.0, 2.4, 9.0], batch_size=8
    )
    assert list(table["step"]) == [1, 2, 3]  # the second seed reaches in its third step
    assert list(table["value"]) == [3.0, 6.0, 9.0]  # of 1, 3 and 100 times the step
    assert list(table["examples"]) == [8, 16, 24]
    assert set(table["matrix"]) == {"a.b"}
    assert len(optimizer_steps([{"step": np.arange(1.0, 4)}], [3.0], batch_size=8)) == 0


def test_the_figure_has_every_optimizer_in_every_panel_at_the_largest_shared_batch_size() -> None:
    def answer(name: str, sizes: tuple[int, ...], **more: float) -> Any:
        tables = {size: optimizer_steps([matrix_columns(5, size, **more)], [5.0], size) for size in sizes}
        return SimpleNamespace(
            along={"optimizer_steps": tables}, group=SimpleNamespace(optimizer=name, example_unit="image")
        )

    table = compute_matrices([answer("adamw", (4, 16, 64)), answer("lamb", (4, 16), trust_ratio=0.5)])
    assert set(table["batch_size"]) == {16}
    assert list(dict.fromkeys(table["panel"])) == [QUANTITIES["trust_ratio"], QUANTITIES["weight_norm"]]
    trust = table[table["quantity"] == "trust_ratio"]
    assert list(trust["optimizer"]) == ["adamw", *["lamb"] * 5]
    assert list(trust["value"].dropna()) == [8.0, 16.0, 24.0, 32.0, 40.0]
    assert trust["value"].isna().sum() == 1
    assert len(compute_matrices([answer("adamw", ())])) == 0
