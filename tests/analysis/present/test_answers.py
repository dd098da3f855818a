"""The summary, all definitions and the points of ``cbs analyze``: CSV, LaTeX, terminal."""

import io
import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis import Analysis, analyze, present
from analysis.config import AnalysisConfig
from analysis.estimate.definitions import DEFINITIONS, HEADLINE
from analysis.estimate.diagnosis import Verdict
from analysis.formatting import B_CRIT, number, with_interval
from analysis.present.answers import definitions, doublings, points, summary
from analysis.present.sentences import QUOTE_NUMBER, good, judged, quote
from analysis.present.table import latex
from analysis.quantities import Quantity
from analysis.questions.fit.table_fit import fit_table
from sweeps.commands.explain import found_in, meanings
from tests.analysis.present.test_table import WIDTHS, lacking, text
from tests.factories import Truth, sweep

QUICK = AnalysisConfig(resamples=100)


def printed(found: Analysis, width: int = 100, **options: bool) -> str:
    console = Console(width=width, file=io.StringIO())
    present.show(found, console, **options)
    return console.file.getvalue()


def balanced(source: str) -> bool:
    rows = [line for line in source.splitlines() if line.endswith(r"\\")]
    return len({row.count(" & ") for row in rows}) == 1


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    root = tmp_path_factory.mktemp("measured")
    adamw = Truth(noise=0.05, geometry="l1", own_signal=2.0, own_noise=9.0)
    truth = {"adam_w": adamw, "muon": Truth(noise=0.05, min_steps=80.0, geometry="nuclear"), "sgd": Truth(noise=0.05)}
    sweep(root, truth, batch_sizes=(2, 8, 32, 128), lrs=(1e-3, 2e-3, 4e-3), seeds=2, growth=1.3, moments=True)
    return analyze(root, QUICK)


@pytest.fixture(scope="module")
def defined(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    root = tmp_path_factory.mktemp("sweep")
    truth = {"adam_w": Truth(noise=0.05), "muon": Truth(noise=0.05, min_steps=80.0)}
    sweep(root, truth, batch_sizes=(2, 8, 32, 128), lrs=(1e-3, 2e-3, 4e-3), seeds=2, growth=1.5)
    options = {"overhead": {"reference_batch": 8.0}}
    return analyze(root, replace(QUICK, definition="overhead", options=options), targets=[2.4, 2.8])


def test_one_line_per_optimizer_and_the_advice_below(measured: Analysis) -> None:
    lines = printed(measured, 100).splitlines()
    head = next(line for line in lines if line.startswith("optimizer"))
    assert head.split() == ["optimizer", "B_crit", "within", "10", "%", "verdict"]
    for answer in measured.answers:
        line = next(line for line in lines if line.startswith(f"{answer.group.optimizer} "))
        assert with_interval(answer.critical_batch_size, answer.interval) in line
        assert f" {good(answer)} " in line
        assert line.rstrip().endswith(str(answer.verdict))
        alike = [
            other for other in measured.answers if other.advice.partition("; ")[0] == answer.advice.partition("; ")[0]
        ]
        to_quote = quote(answer, numbers=len(alike) == 1)
        said = f"{answer.advice.partition('; ')[0]}. {to_quote}".strip(". ")
        assert said in " ".join(" ".join(lines).split())
        assert answer.advice in " ".join(printed(measured, 100, wide=True).split())
    assert "[95 % interval]" in lines[0]


@pytest.mark.parametrize(
    ("value", "interval", "verdict", "said"),
    [
        (30.0, (20.0, 40.0), Verdict.OK, QUOTE_NUMBER),
        (30.0, (20.0, 40.0), Verdict.FAR_SEED, "Not ok: quote the interval [20, 40] with the reason, not the number."),
        (30.0, (20.0, None), Verdict.ABOVE, "Not ok: quote 'above 20' with the reason, not the number."),
        (None, (None, 4.0), Verdict.BELOW, "Not ok: quote 'below 4' with the reason."),
        (None, (None, None), Verdict.NOT_REACHED, "Not ok: there is no number to quote, only the reason."),
    ],
)
def test_what_to_quote_is_one_sentence(measured, value, interval, verdict, said):
    answer = measured.answers[0]
    own = replace(answer.critical, value=value, interval=interval)
    answer = replace(answer, definitions=answer.definitions | {HEADLINE: own}, verdict=verdict, advice="add seeds")
    assert quote(answer) == said
    assert [*judged([answer, answer], advice=True)] == [f"add seeds. {said}"]
    fine = replace(answer, verdict=Verdict.OK, advice="", group=replace(answer.group, folder=Path("elsewhere")))
    both = [*judged([fine, replace(answer, verdict=Verdict.FAR_SEED)])]
    name = answer.group.optimizer
    assert both[0].startswith(f"{name}: one seed far from the others. Not ok: ")
    assert both[1] == f"{name}: ok: quote the number with its interval."
    asks = replace(answer, advice="are they steps?")
    assert [*judged([asks], advice=True)] == ([f"are they steps? {said}"] if said else ["are they steps?"])
    edge = [*judged([fine, replace(answer, verdict=Verdict.AT_GRID_EDGE)])]
    assert edge[0].startswith(f"{name}: LR optimum at edge of grid. ")
    wider = replace(answer, definitions=answer.definitions | {HEADLINE: replace(own, interval=(10.0, 50.0))})
    if value is not None and None not in interval and verdict is not Verdict.OK:
        alike = "add seeds. Not ok: quote the interval with the reason, not the number."
        assert [*judged([answer, wider], advice=True)] == [alike]
    above = [replace(own, value=30.0, interval=(low, None)) for low in (20.0, 25.0)]
    bounds = [replace(answer, definitions=answer.definitions | {HEADLINE: each}) for each in above]
    if verdict is Verdict.ABOVE:
        assert [*judged(bounds)] == [f"{verdict}. Not ok: quote the bound with the reason, not the number."]


def test_what_the_number_is_and_what_it_means_for_a_run_is_told(measured: Analysis) -> None:
    """By the expected curve: steps and examples against those of the smallest batch."""
    for answer in measured.answers:
        sizes = np.array([answer.draws.batch_sizes[0], answer.critical_batch_size])
        first, here = np.exp(answer.draws.estimate(sizes))
        examples = here * sizes[1] / (first * sizes[0])
        said = f"at B = {number(sizes[1])} a run takes {here / first:.2g} times the steps and {examples:.2g} times the "
        line = f"{answer.group.optimizer}: {said}sequences of the smallest batch, {sizes[0]:g}"
        assert line in summary(measured.answers).wide_lines
    table = summary(measured.answers)
    assert [*table.lines, *table.wide_lines].count(B_CRIT) == 1


@pytest.mark.parametrize(
    ("critical", "near", "shown", "range_shown"),
    [
        (Quantity(30.0, (20.0, 40.0)), (15.0, 60.0), ("30", "[20, 40]"), "15 to 60"),
        (Quantity(None, (None, 2.0)), (None, 7.0), ("below 2", ""), "< 2 to 7"),
        (Quantity(None, (128.0, None)), (90.0, None), ("above 128", ""), "90 to > 128"),
        (Quantity(None, (128.0, None)), (140.0, None), ("above 128", ""), "> 128"),
        (Quantity(100.0, (70.0, None)), (None, None), ("100", "[70, ∞]"), "< 2 to > 128"),
    ],
)
def test_an_end_beyond_the_measured_batch_sizes_is_told_as_such(
    measured: Analysis,
    critical: Quantity,
    near: tuple[float | None, float | None],
    shown: tuple[str, str],
    range_shown: str,
) -> None:
    answer = measured.answers[0]
    own = replace(answer.critical, value=critical.value, interval=critical.interval)
    table = summary([replace(answer, definitions=answer.definitions | {HEADLINE: own}, near=near)])
    columns = {column.key or column.heading: column for column in table.columns}
    assert columns["critical_batch_size"].cell(table.rows[0]) == shown
    assert columns["within 10 %"].cell(table.rows[0]) == (range_shown, "")
    (row,) = table.frame()[["within_10_percent_low", "within_10_percent_high"]].astype(object).values.tolist()
    assert [None if pd.isna(end) else end for end in row] == list(near)


def test_what_doubling_buys_is_told_in_percent_and_kept_as_shares(measured: Analysis) -> None:
    table = doublings(measured.answers)
    lines = printed(measured, 100, wide=True).splitlines()
    frame = table.frame()
    assert len(frame) == 3 * 3
    for (entry, answer), (_, row) in zip(table.rows, frame.iterrows(), strict=True):
        here, there = np.exp(answer.draws.estimate(np.array([1.0, 2.0]) * entry.batch_size))
        assert row["steps_saved"] == pytest.approx(1 - there / here)
        assert row["examples_added"] == pytest.approx(2 * there / here - 1)
        assert row["steps_saved_low"] < row["steps_saved"] < row["steps_saved_high"]
        ends = ", ".join(f"{100 * end:.0f}" for end in entry.steps_saved.interval)
        start = f"{answer.group.optimizer} +{entry.batch_size:g} to {2 * entry.batch_size:g} "
        (line,) = [line for line in lines if re.match(start.replace(" +", " +"), line)]
        assert f" {100 * row['steps_saved']:.0f} [{ends}] " in line


def test_wide_has_every_quantity_in_a_cell_of_its_own(measured: Analysis) -> None:
    wide = printed(measured, 400, wide=True)
    head = next(line for line in wide.splitlines() if line.startswith("optimizer"))
    for heading in (
        "S_min",
        "exponent",
        "deviation of a seed",
        "shared by seeds",
        "rms residual",
        "sequences at B_crit",
        "B_crit (tokens)",
        "B_simple",
        "B_simple / B_crit",
        "geometry",
    ):
        assert f"  {heading}  " in head
    assert all(heading not in printed(measured, 400) for heading in ("S_min  ", "B_simple", "tokens"))
    for answer in measured.answers:
        for scale in (answer.noise_scale, answer.noise_scale_ratio, answer.matched_noise_scale, answer.exponent):
            assert with_interval(scale.value, scale.interval) in wide


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("wide", [True, False])
def test_no_number_is_cut_at_any_width(measured: Analysis, defined: Analysis, width: int, wide: bool) -> None:
    for found in (measured, defined):
        tables = [made(found.answers) for made in (summary, doublings, definitions, points)]
        for table in tables:
            assert lacking(table.shown(wide=wide), text(table, width, wide=wide)) == []
        said = printed(found, width, wide=wide)
        assert "…" not in said
        paths = ("in ", "  ", "next: ")
        assert max(len(line) for line in said.splitlines() if not line.startswith(paths)) <= width


def test_what_is_not_measured_has_no_column(tmp_path: Path, measured: Analysis) -> None:
    sweep(tmp_path / "none", {"sgd": Truth(noise=0.05)}, batch_sizes=(2, 32), lrs=(1e-3, 2e-3), growth=1.5)
    none = analyze(tmp_path / "none", QUICK)
    sweep(tmp_path / "l2", {"sgd": Truth(noise=0.05)}, batch_sizes=(2, 32), lrs=(1e-3, 2e-3), growth=1.5, moments=True)
    plain = analyze(tmp_path / "l2", QUICK)
    for found, simple, matched in ((none, False, False), (plain, True, False), (measured, True, True)):
        for shown in (printed(found, 300, wide=True), latex(summary(found.answers))):
            assert ("simple" in shown) == simple
            assert ("matched" in shown) == matched
    assert r"$B_{\mathrm{matched}} / B_{\mathrm{crit}}$" in latex(summary(measured.answers))
    assert list(summary(none.answers).frame()) == list(summary(measured.answers).frame())


def test_latex_is_escaped_and_balanced(measured: Analysis, defined: Analysis) -> None:
    source = latex(summary(measured.answers))
    assert r"adam\_w" in source
    assert balanced(source)
    source = latex(definitions(defined.answers))
    assert balanced(source)
    assert len([line for line in source.splitlines() if line.endswith(r"\\")]) == 1 + 4 * len(DEFINITIONS.names())
    assert all(word in source for word in (r"adam\_w", r"token\_optimal", r"reference\_batch 8"))
    assert r"\textless{} 2.4" in latex(summary(defined.answers))


def test_one_row_per_answer_and_definition(defined: Analysis, tmp_path: Path) -> None:
    files = present.write(defined, tmp_path, figures=None)
    assert tmp_path / "definitions.tex" in files
    table = pd.read_csv(tmp_path / "definitions.csv")
    assert list(table) == [
        "sweep", "workload", "optimizer", "metric", "target", "direction", "definition", "value", "low", "high",
        "value_tokens", "example_unit", "tokens_per_example", "confidence", "options", "remark",
    ]  # fmt: skip
    assert len(table) == 2 * 2 * len(DEFINITIONS.names())
    for _, row in table.iterrows():
        (answer,) = [
            answer
            for answer in defined.answers
            if (answer.group.optimizer, answer.target.value) == (row["optimizer"], row["target"])
        ]
        entry = answer.definitions[row["definition"]]
        assert (row["value"] == pytest.approx(entry.value)) if entry.value else pd.isna(row["value"])
        assert pd.isna(row["value"]) or row["value_tokens"] == pytest.approx(32 * row["value"])
        assert json.loads(row["options"]) == entry.options
    assert table["remark"].str.len().max() > 0


def test_a_definition_that_has_nothing_to_say_has_a_line_that_says_why_and_no_row(measured: Analysis) -> None:
    table = definitions(measured.answers[:1])
    undefined = [entry.definition for entry in measured.answers[0].definitions.values()
                 if entry.value is None and entry.interval == (None, None)]  # fmt: skip
    assert undefined == ["kaplan"]
    assert [*table.frame()["definition"]] == [name for name in DEFINITIONS.names() if name not in undefined]
    assert [line for line in table.lines if line.startswith("kaplan: not defined")]
    # without a remark, nothing else would say that it was looked at
    answer = measured.answers[0]
    silent = {name: replace(entry, remark="") for name, entry in answer.definitions.items()}
    assert len(definitions([replace(answer, definitions=silent)]).rows) == len(DEFINITIONS.names())


def test_headings_name_the_definition(defined: Analysis) -> None:
    shown = printed(defined, 120)
    assert "overhead (overhead 0.2, reference_batch 8)" in " ".join(shown.split())
    assert "B_overhead" in shown
    (head,) = [line for line in shown.splitlines() if line.startswith("optimizer") and "verdict" in line]
    assert "B_crit" not in head
    assert "within" not in head
    assert B_CRIT not in " ".join(shown.split())
    source = latex(summary(defined.answers))
    assert r"$B_{\mathrm{overhead}}$" in source
    assert source.count(r"sequences at $B_{\mathrm{overhead}}$") == 1
    assert r"B_{\mathrm{crit}}" not in source


def test_every_heading_is_a_word_that_explain_knows(measured: Analysis) -> None:
    known = meanings()
    for table in (summary(measured.answers), doublings(measured.answers), definitions(measured.answers)):
        for heading in (column.heading for column in table.shown(wide=True).columns):
            for word in re.split(r" / | at | \(|\)|, %", heading):
                assert not word or found_in(word.replace("sequences", "examples"), known), word


def test_the_answer_fits_a_screen_and_everything_else_is_asked_for(measured: Analysis) -> None:
    short, wide = printed(measured, 80).splitlines(), printed(measured, 80, wide=True)
    assert len(short) <= 15
    assert max(map(len, short)) <= 80
    for title in ("What doubling the batch size buys", "Definitions side by side"):
        assert title in wide
        assert title not in "\n".join(short)


def test_a_notebook_shows_the_table_the_sentence_and_the_main_figure(measured: Analysis) -> None:
    page = measured._repr_html_()
    for answer in measured.answers:
        assert with_interval(answer.critical_batch_size, answer.interval) in page
    assert page.count("data:image/png;base64,") == 1
    assert all(escape(line) in page for line in judged(measured.answers, advice=True))
    of_a_table = fit_table(pd.DataFrame({"batch_size": [4, 8, 16, 32], "steps": [210, 110, 60, 35]}))
    assert of_a_table._repr_html_().count("data:image/png;base64,") == 1
