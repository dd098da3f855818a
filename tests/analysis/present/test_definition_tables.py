"""All definitions side by side: CSV, LaTeX, terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis import Report, analyze
from analysis.estimate.definitions import DEFINITIONS
from analysis.present import style
from analysis.present.definition_tables import COLUMNS, latex, side_by_side
from analysis.present.figures import FIGURES
from analysis.present.tables import latex as summary_latex
from tests.factories import Truth, sweep


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    root = tmp_path_factory.mktemp("sweep")
    truth = {"adam_w": Truth(noise=0.05), "muon": Truth(noise=0.05, min_steps=80.0)}
    sweep(root, truth, batch_sizes=(2, 8, 32, 128), lrs=(1e-3, 2e-3, 4e-3), seeds=2, growth=1.5)
    return analyze(
        root, targets=[2.4, 2.8], figures=False, resamples=200, definition="overhead", options={"reference_batch": 8.0}
    )


def test_one_row_per_answer_and_definition(report: Report) -> None:
    table = pd.read_csv(report.output / "definitions.csv")
    assert tuple(table) == COLUMNS
    assert len(table) == 2 * 2 * len(DEFINITIONS.names())
    for _, row in table.iterrows():
        (answer,) = [
            answer
            for answer in report.answers
            if (answer.group.optimizer, answer.target.value) == (row["optimizer"], row["target"])
        ]
        entry = answer.estimate.critical[row["definition"]]
        assert (row["value"] == pytest.approx(entry.value)) if entry.value else pd.isna(row["value"])
        assert pd.isna(row["value"]) or row["value_tokens"] == pytest.approx(32 * row["value"])
        assert json.loads(row["options"]) == entry.options
    assert side_by_side(report.answers)["remark"].str.len().max() > 0


def test_latex_is_escaped_and_balanced(report: Report) -> None:
    text = (report.output / "definitions.tex").read_text()
    assert text == latex(report.answers)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + 2 * 2 * len(DEFINITIONS.names())
    assert len({row.count(" & ") for row in rows}) == 1
    assert all(word in text for word in (r"\toprule", r"adam\_w", r"token\_optimal", r"reference\_batch 8"))


@pytest.mark.parametrize("width", [100, 140])
def test_the_terminal_says_every_remark_once(report: Report, width: int) -> None:
    console = Console(width=width, file=io.StringIO())
    report.print(console, definitions=True)
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.split("tables: ")[0].splitlines())) <= width
    assert all(name in text for name in DEFINITIONS.names())
    said = " ".join(text.split())
    pairs = side_by_side(report.answers)[["definition", "remark"]].drop_duplicates()
    remarks = [
        remark for remark in pairs["remark"] if remark and sum(remark in other for other in pairs["remark"]) == 1
    ]
    assert remarks
    assert [said.count(remark) for remark in remarks] == [1] * len(remarks)


def test_headings_name_the_definition(report: Report) -> None:
    console = Console(width=120, file=io.StringIO())
    report.print(console)
    shown = console.file.getvalue()
    assert "overhead (overhead 0.2, reference_batch 8)" in " ".join(shown.split())
    assert "B_overhead" in shown
    assert "B_crit" not in shown
    assert r"$B_{\mathrm{overhead}}$" in summary_latex(report.answers)
    assert r"B_{\mathrm{crit}}" not in summary_latex(report.answers)


def test_the_figure_has_a_dot_per_value_and_an_arrow_per_open_end(report: Report) -> None:
    kind = FIGURES["definitions"]
    table = kind.compute([answer for answer in report.answers if answer.target.value == 2.4])
    assert len(table) == 2 * len(DEFINITIONS.names())
    table.loc[0, ["value", "low", "high"]] = [np.nan, 3.0, np.nan]
    table.loc[1, ["value", "low", "high"]] = [np.nan, np.nan, 5.0]
    table.loc[2, ["value", "low", "high"]] = [np.nan, np.nan, np.nan]
    before = table.copy()
    (axes,) = [axes for axes in kind.figure(table).axes if axes.get_yticklabels()]
    markers = [line.get_marker() for line in axes.lines]
    low, high = table["low"].notna(), table["high"].notna()
    assert markers.count(">") == (low & ~high).sum()
    assert markers.count("<") == (high & ~low).sum()
    assert sum(marker in style.MARKERS for marker in markers) == table["value"].notna().sum()
    assert len(axes.texts) == (table[["value", "low", "high"]].isna().all(axis=1)).sum()
    pd.testing.assert_frame_equal(table, before)


def test_nothing_reached_is_a_table_of_dashes(tmp_path: Path) -> None:
    sweep(tmp_path, {"adamw": Truth()}, batch_sizes=(2, 8), lrs=(1e-3, 2e-3), growth=1.5, max_steps=10)
    report = analyze(tmp_path, figures=False, resamples=100)
    assert side_by_side(report.answers)[["value", "low", "high"]].isna().all(axis=None)
    report.print(Console(width=100, file=io.StringIO()), definitions=True)
