"""The summary as CSV, LaTeX and for the terminal."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from analysis import analyze
from analysis.present.tables import escape, latex, number, summary, terminal_table, with_interval
from tests.factories import Truth, sweep


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42.176, "42.2"),
        (7381.2, "7,381"),
        (0.001234, "0.00123"),
        (50.0, "50"),
        (0.0, "0"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_open_ends_are_shown() -> None:
    assert with_interval(42.0, (38.0, None)) == "42 [38, ∞]"
    assert with_interval(None, (None, 7.0)) == "– [0, 7]"
    assert with_interval(42.0, (None, None)) == "42"


def test_latex_is_escaped_and_balanced(tmp_path: Path) -> None:
    sweep(tmp_path, {"adam_w": Truth(noise=0.05)}, batch_sizes=(2, 16, 128), lrs=(1e-3, 2e-3, 4e-3), growth=1.5)
    report = analyze(tmp_path, figures=False, resamples=200)
    answers = report.answers
    text = latex(answers)
    assert r"adam\_w" in text
    assert r"validation\_loss \textless{} 2.4" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({row.count(" & ") for row in rows}) == 1
    assert escape("50% & #1 {x}") == r"50\% \& \#1 \{x\}"
    console = Console(width=110, file=io.StringIO())
    report.print(console)
    shown = console.file.getvalue()
    assert "adam_w" in shown
    assert "[95 % interval]" in shown
    assert "tokens" in shown
    assert "one seed" in shown
    assert str(report.output / "summary.tex") in shown
    row = summary(answers).iloc[0]
    assert row["critical_batch_size_low"] < row["critical_batch_size"] < row["critical_batch_size_high"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("measured")
    adamw = Truth(noise=0.05, geometry="l1", own_signal=2.0, own_noise=9.0)
    truth = {"adamw": adamw, "muon": Truth(noise=0.05, min_steps=80.0, geometry="nuclear"), "sgd": Truth(noise=0.05)}
    sweep(root, truth, batch_sizes=(2, 8, 32, 128), lrs=(1e-3, 2e-3, 4e-3), seeds=2, growth=1.3, moments=True)
    return root


def shown(root: Path, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(terminal_table(analyze(root, figures=False, resamples=200).answers))
    return console.file.getvalue()


def test_noise_scales_fit_a_terminal_of_100_columns(measured: Path) -> None:
    """What is cut ends in an ellipsis; intervals and names are whole."""
    text = shown(measured)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 100
    answers = analyze(measured, figures=False, resamples=200).answers
    for answer in answers:
        assert f"{answer.matched_geometry}: {number(answer.matched_noise_scale.value)}" in text
        assert f"{number(answer.matched_noise_scale_ratio.value)} B_crit" in text
        assert f"{number(answer.noise_scale_ratio.value)} B_crit" in text
        assert with_interval(None, answer.noise_scale_ratio.interval).removeprefix("– ") in text


def test_matched_is_left_out_where_it_is_plain_in_every_row(measured: Path, tmp_path: Path) -> None:
    sweep(tmp_path, {"sgd": Truth(noise=0.05)}, batch_sizes=(2, 32), lrs=(1e-3, 2e-3), growth=1.5, moments=True)
    plain = analyze(tmp_path, figures=False, resamples=200).answers
    assert "B_matched" not in shown(tmp_path)
    assert "matched" not in latex(plain)
    assert "B_simple" in shown(tmp_path)
    assert "B_matched" in shown(measured)
    mixed = latex(analyze(measured, figures=False, resamples=200).answers)
    assert r"$B_{\mathrm{matched}} / B_{\mathrm{crit}}$" in mixed
    assert "l1: " in mixed
    rows = [line for line in mixed.splitlines() if line.endswith(r"\\")]
    assert len({row.count(" & ") for row in rows}) == 1
