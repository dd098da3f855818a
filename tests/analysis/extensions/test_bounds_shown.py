"""What ``cbs theory bounds`` prints, writes and draws."""

from __future__ import annotations

import io
import json
import math
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

GIVEN = [
    "--optim",
    "muon",
    "--beta",
    "0.9,0.95",
    "--epsilon",
    "0.5",
    "--lr",
    "0.001",
    "--smoothness",
    "1",
    "--gap",
    "3",
]
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
        "muon(momentum=0.9): what is no matrix is trained by AdamW",
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


def test_constants_are_printed_and_drawn(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, out, err = run("theory", "bounds", *GIVEN, "--noise", "5", "-o", str(tmp_path))
    assert code == 0, err
    assert "muon, beta 0.95, Nesterov" in out
    assert "at most 2.45, by smoothness and gap" in out
    table = pd.read_csv(tmp_path / "given_bounds.csv")
    assert list(table["beta"]) == [0.9, 0.95]
    assert (table["best_batch_size"] / table["smallest_batch_size"]).to_list() == pytest.approx([2.25, 2.25])
    curves = pd.read_csv(tmp_path / "given_bound_curves.csv")
    assert (curves["steps"].isna() == curves["examples"].isna()).all()
    assert (tmp_path / "figures" / "given_bounds.pdf").exists()
    drawn = pd.read_csv(tmp_path / "figures" / "given_bounds.csv")
    least = (
        drawn[(drawn["kind"] == "bound") & drawn["panel"].str.startswith("examples")]
        .groupby("optimizer")["value"]
        .min()
    )
    best = drawn[(drawn["kind"] == "best") & drawn["panel"].str.startswith("examples")].set_index("optimizer")["value"]
    assert least.to_numpy() == pytest.approx(best[least.index].to_numpy(), rel=0.01)
    assert not math.isnan(least.iloc[0])


def test_without_a_folder_nothing_is_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("theory", "bounds", *GIVEN, "--noise", "5", "--json")
    assert code == 0, err
    assert json.loads(out)["files"] == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a folder of results, or all constants of a bound: missing --optim, --epsilon, --lr"),
        (GIVEN, "missing --noise"),
        ([*GIVEN, "--noise", "-5"], "noise must be a finite number above 0, got -5"),
        ([*GIVEN, "--noise", "nan"], "noise must be a finite number above 0, got nan"),
        ([*GIVEN, "--noise", "5", "--beta", "1"], "beta must be in [0, 1), got 1"),
        ([*GIVEN, "--noise", "5", "--epsilon", "0.001"], "there is no bound; take a smaller learning rate"),
        (
            [*GIVEN, "--noise", "5", "--form", "root"],
            "--form, --at-lr, --target and how intervals are made are about measured steps",
        ),
        ([*GIVEN, "--noise", "5", "--at-lr", "0.5"], "name results"),
        ([*GIVEN, "--noise", "5", "--confidence", "0.8"], "how intervals are made are about measured steps"),
        (["somewhere", "--beta", "0.9"], "--beta: constants are given instead of results, not beside them"),
        (["nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("theory", "bounds", *arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) == 1
