"""The summary as CSV, LaTeX and for the terminal."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from analysis import analyze
from analysis.tables import escape, latex, number, summary, with_interval
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
