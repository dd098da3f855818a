"""What ``cbs theory bounds`` prints, writes and draws."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from analysis import present
from analysis.config import AnalysisConfig
from analysis.extensions.theory.bounds.measured import MeasuredBounds, measured_bounds
from analysis.present.figures import FIGURES
from tests.factories import Truth, sweep

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two momenta of Muon, whose critical batch sizes do not move, and AdamW."""
    folder = tmp_path_factory.mktemp("sweep")
    truths = {name: Truth(noise=0.02) for name in ("muon(momentum=0.9)", "muon(momentum=0.95)", "adamw")}
    sweep(folder, truths, variants=True, batch_sizes=(8, 32, 128, 512), lrs=(2e-3, 8e-3, 3.2e-2), seeds=2, growth=2.0)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> MeasuredBounds:
    return measured_bounds(folder, AnalysisConfig(resamples=100))


def printed(found: MeasuredBounds) -> str:
    console = Console(file=io.StringIO(), width=200)
    present.show(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_prediction_is_said_to_be_one_of_an_upper_bound(found: MeasuredBounds) -> None:
    text = printed(found)
    for words in (
        "Steps bounds beside the critical batch size in sequences [95 % interval]",
        "of the upper bound",
        "every prediction is one of an upper bound on the steps",
        "the bounds keep one learning rate for all batch sizes",
        "adamw: the papers have no bound for it",
        "muon(momentum=0.9): parameters that are not matrices are trained by AdamW",
        "muon(momentum=0.9) -> muon(momentum=0.95)",
        "root: does not hold",
    ):
        assert words in text, words


def test_tables_json_and_figure_are_written(found: MeasuredBounds, tmp_path: Path) -> None:
    files = {path.name for path in present.write(found, tmp_path)}
    assert {
        "steps_bounds.csv",
        "steps_bounds.tex",
        "predictions.csv",
        "bound_scalings.csv",
        "steps_bounds.json",
    } <= files
    assert {"steps_bounds.pdf", "steps_bounds.png"} <= files
    written = json.loads((tmp_path / "steps_bounds.json").read_text())
    (scope,) = written["scopes"]
    assert [bound["optimizer"] for bound in scope["bounds"]] == ["adamw", "muon(momentum=0.9)", "muon(momentum=0.95)"]
    table = pd.read_csv(tmp_path / "steps_bounds.csv")
    # a form that does not fit gives no b*
    assert table["bound_best_batch_size"].isna().all()
    assert table["critical_batch_size"].notna().all()
    scaled = pd.read_csv(tmp_path / "bound_scalings.csv").set_index("quantity")
    entry = next(entry for entry in scope["scalings"] if entry["quantity"] == "pareto")
    assert scaled.loc["pareto", "measured"] == pytest.approx(entry["measured"]["value"])
    assert scaled.loc["pareto", "predicted"] == pytest.approx(entry["predicted"])


def test_the_figure_shows_points_forms_and_ratios(found: MeasuredBounds) -> None:
    kind = FIGURES["steps_bounds"]
    table = kind.compute(found.scopes[0])
    assert set(table["panel"]) == {"steps to target", "examples to target", "ratios of settings"}
    steps = table[(table["panel"] == "steps to target") & (table["kind"] == "point")]
    examples = table[(table["panel"] == "examples to target") & (table["kind"] == "point")]
    assert examples["value"].to_numpy() == pytest.approx((steps["value"] * steps["batch_size"]).to_numpy())
    assert ((steps["low"] <= steps["value"]) & (steps["value"] <= steps["high"])).all()
    forms = table[table["kind"] == "form"]
    assert set(forms["optimizer"]) == {"muon(momentum=0.9)", "muon(momentum=0.95)"}
    figure = kind.figure(table)
    figure.draw_without_rendering()
    assert len(figure.axes) == 3
    assert all(axes.get_window_extent().width > 100 for axes in figure.axes)


def test_no_figure_without_a_bound(tmp_path: Path) -> None:
    """The steps alone are another figure."""
    sweep(tmp_path, {"adamw": Truth(noise=0.02), "soap": Truth(noise=0.02)}, batch_sizes=(8, 32, 128), lrs=(2e-3, 8e-3))
    found = measured_bounds(tmp_path, AnalysisConfig(resamples=100))
    assert all(bound.fit is None for scope in found.scopes for bound in scope.bounds)
    assert FIGURES["steps_bounds"].compute(found.scopes[0]).empty
    assert not [path for path in present.write(found, tmp_path / "out") if path.suffix == ".png"]
