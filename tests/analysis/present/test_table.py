"""One description of a table: numbers, CSV, LaTeX as narrow as a paper, and the terminal at every width."""

import io
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from analysis import analyze, present
from analysis.config import AnalysisConfig
from analysis.formatting import number, with_interval
from analysis.present.table import MOST_COLUMNS, Column, Table, for_paper, latex, pivot, print_part, quantity
from analysis.quantities import UNKNOWN, Quantity
from tests.factories import Truth, sweep

WIDTHS = (40, 60, 80, 120, 200)


def text(table: Table, width: int, *, wide: bool = False) -> str:
    console = Console(width=width, file=io.StringIO())
    print_part(table.shown(wide=wide), console)
    return console.file.getvalue()


def lacking(table: Table, shown: str) -> list[str]:
    """The numbers of the description that the rendered text does not have in full: numbers and intervals as they are,
    of names and sentences, which may be broken between words, every number."""
    parts = [
        part
        for row in table.cells()
        for column, cell in zip(table.columns, row, strict=True)
        for part in (re.findall(r"-?\d[\d.,]*\d|\d", cell[0]) if column.left or column.name else cell)
        if re.search(r"\d", part)
    ]
    said = " ".join(shown.split())
    return [part for part in parts if not re.search(rf"(?<!\d)(?<!\d[.,]){re.escape(part)}(?!\d|[.,]\d)", said)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (42.176, "42.2"),
        (7381.2, "7,381"),
        (1234567.0, "1,234,567"),
        (123456789, "123,456,789"),
        (1.5e9, "1.5e9"),
        (0.001234, "0.00123"),
        (-0.000000331, "-3.31e-7"),
        (0.00009999, "1e-4"),
        (50.0, "50"),
        (0.0, "0"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_open_ends_are_shown() -> None:
    assert with_interval(42.0, (38.0, None)) == "42 [38, ∞]"
    assert with_interval(42.0, (None, 50.0)) == "42 [0, 50]"
    row = {"difference": -0.2, "interval": (None, 1.2)}
    assert Column("difference", "", "difference", "interval", signed=True).cell(row) == ("-0.2", "[-∞, 1.2]")
    assert with_interval(None, (None, 7.0)) == "below 7"
    assert with_interval(None, (4000.0, None)) == "above 4,000"
    assert with_interval(None, (4.0, 7.0)) == "– [4, 7]"
    assert Column("size", "size", "size", "interval").cell({"size": None, "interval": (8.0, None)}) == ("above 8", "")
    assert with_interval(42.0, (None, None)) == "42"


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="…"), min_size=1, max_size=50
)
VALUES = st.none() | st.floats(1e-12, 1e15) | st.integers(0, 10**12)
INTERVALS = st.tuples(st.none() | st.floats(1e-12, 1e15), st.none() | st.floats(1e-12, 1e15))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    count = draw(st.integers(1, 8))
    row = st.fixed_dictionaries(
        {"name": NAMES, "words": st.lists(NAMES, max_size=4).map(" ".join)}
        | {f"v{place}": VALUES for place in range(count)}
        | {f"i{place}": INTERVALS for place in range(count)}
    )
    columns = [Column("name", "", "optimizer", name=True)]
    for place in range(count):
        heading = draw(st.sampled_from(["B_crit", "critical batch size", "k", "B_simple / B_crit"]))
        interval = draw(st.sampled_from([None, f"i{place}"]))
        columns.append(Column(f"v{place}", "", heading, interval, wide=draw(st.booleans())))
    columns.append(Column("words", "", "verdict", left=True))
    return Table(columns=tuple(columns), rows=draw(st.lists(row, min_size=1, max_size=4)), title="title")


@settings(max_examples=60)
@given(tables(), st.sampled_from([20, *WIDTHS]), st.booleans())
def test_every_number_is_there_in_full_at_every_width(table: Table, width: int, wide: bool) -> None:
    shown = text(table, width, wide=wide)
    seen = table.shown(wide=wide)
    kept = [column for column in seen.columns if not (column.left or column.name)]
    numbers = Table(columns=tuple(kept), rows=table.rows)
    assert lacking(numbers, shown) == []
    assert all(word in shown for column in seen.columns[1:] for word in column.heading.split())
    assert "…" not in shown


def test_a_table_is_whole_then_in_blocks_then_row_by_row() -> None:
    columns = [Column("name", "", "optimizer", name=True)]
    columns += [Column(f"v{place}", "", f"quantity {place}", f"i{place}") for place in range(5)]
    values = {f"v{place}": 1234.0 + place for place in range(5)}
    ends = {f"i{place}": (1000.0, 2000.0) for place in range(5)}
    table = Table(columns=tuple(columns), rows=[{"name": name} | values | ends for name in ("adamw", "muon")])
    blocks, row_by_row = text(table, 50), text(table, 24)
    assert text(table, 200).count("optimizer") == 1
    assert "1,234 [1,000, 2,000]" in text(table, 200)
    assert blocks.count("optimizer") == blocks.count("muon") > 1
    assert row_by_row.count("muon") == 1
    assert "quantity 4:" in row_by_row
    for shown, width in ((blocks, 50), (row_by_row, 24)):
        assert lacking(table, shown) == []
        assert max(map(len, shown.splitlines())) <= width


def test_a_command_stays_on_its_line() -> None:
    console = Console(width=40, file=io.StringIO())
    command = "  cbs sweep " + " ".join(f"--option-{place} value" for place in range(9))
    print_part(command, console)
    assert console.file.getvalue() == f"{command}\n"


def test_files_hold_values_and_ends_of_intervals_under_their_names() -> None:
    columns = (
        Column("value", "", "shown", "interval", ends=("low", "high")),
        Column("cost", interval="around"),
        Column("", "value", "for people alone"),
    )
    rows = [{"value": 1.5, "interval": (1.0, None), "cost": None, "around": None}]
    frame = Table(columns=columns, rows=rows).frame()
    assert list(frame) == ["value", "low", "high", "cost", "cost_low", "cost_high"]
    assert frame.iloc[0, :2].tolist() == [1.5, 1.0]
    assert list(Table(columns=columns, rows=[]).frame()) == list(frame)


def test_a_path_begins_at_the_first_part_of_a_row_that_has_it() -> None:
    columns = (Column("name"), Column("scale", "fit.scale"), Column("both", lambda one, two: one["name"] + two["name"]))
    rows = [({"name": "a"}, {"name": "b", "fit": {"scale": 2.0}}), ({"name": "c"}, {"name": "d", "fit": None})]
    frame = Table(columns=columns, rows=rows).frame()
    assert frame["name"].tolist() == ["a", "c"]
    assert frame["both"].tolist() == ["ab", "cd"]
    assert frame["scale"].isna().tolist() == [False, True]


def test_a_pivot_has_a_dash_where_there_is_nothing() -> None:
    rows = [
        {"batch": 4, "optimizer": "muon", "ratio": 1.5, "ends": (1.0, 2.0)},
        {"batch": 8, "optimizer": "sgd", "ratio": 0.5, "ends": (None, None)},
    ]
    found = pivot(rows, Column("", "batch", "batch size"), Column("optimizer", "ratio", interval="ends"))
    assert [column.heading for column in found.columns] == ["batch size", "muon", "sgd"]
    assert found.cells() == [[("4", ""), ("1.5", "[1, 2]"), ("–", "")], [("8", ""), ("–", ""), ("0.5", "")]]


def test_latex_is_escaped_and_balanced() -> None:
    columns = (Column("name", "", "name_%", name=True), Column("b", "b", "B", "ends", latex="$B$"))
    hostile = r"50% & #1 {x}_y ^z~ \a $ < >"
    source = latex(Table(columns=columns, rows=[{"name": hostile, "b": 2.0, "ends": (1.0, None)}], title="t"))
    body = source.splitlines()
    assert body[0] == "% t"
    assert body[1] == r"\begin{tabular}{lr}"
    (row,) = [line for line in body if "50" in line]
    assert r"50\% \& \#1 \{x\}\_y" in row
    assert r"\textless{} \textgreater{} & 2 [1, $\infty$]" in row
    assert r"name\_\% & $B$ \\" in source
    assert re.search(r"(?<!\\)[#<>~^]|(?<!\\)%(?! t)", source) is None
    assert all(rule in source for rule in (r"\toprule", r"\midrule", r"\bottomrule"))


def test_a_quantity_is_a_column_with_its_interval_in_the_unit_of_its_heading() -> None:
    rows = [{"time": Quantity(7200.0, (3600.0, None))}, {"time": UNKNOWN}, {"time": None}]
    table = Table(columns=(quantity("hours", "time (h)", "time", times=1 / 3600), quantity("time")), rows=rows)
    assert [cells[0] for cells in table.cells()] == [("2", "[1, ∞]"), ("–", ""), ("–", "")]
    frame = table.frame()
    assert list(frame) == ["hours", "hours_low", "hours_high", "time", "time_low", "time_high"]
    assert frame.iloc[0].dropna().tolist() == [2.0, 1.0, 7200.0, 3600.0]
    assert frame.iloc[1:].isna().all(axis=None)


FAST = AnalysisConfig(resamples=100)
LONG = "muon(betas=[0.9, 0.95], match_rms_adamw=true, momentum=0.95, weight_decay=0.1)"


def hard_to_set(root: Path) -> None:
    """Two sweeps, two targets, long names of variants, characters that LaTeX reads as its own, and doubts."""
    names = {LONG: Truth(noise=0.05), LONG.replace("0.95", "0.98"): Truth(noise=0.05), "50%_of_a#name": Truth()}
    for name in ("one", "another_sweep_of_a_long_name"):
        sweep(root / name, names, variants=True, batch_sizes=(8, 32, 128), lrs=(1e-3, 2e-3), growth=1.2, name=name)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    hard_to_set(root)
    return root


def columns(text: str) -> int:
    return text.split(r"\toprule")[1].split(r"\\")[0].count("&") + 1


def test_a_table_for_a_paper_has_its_names_its_verdict_and_what_there_is_room_for() -> None:
    names = [Column(name, heading=name, name=True) for name in "abc"]
    others = [Column(name, heading=name) for name in "uvwxyz"]
    table = Table(columns=(*names, *others), rows=[{name: name for name in "abcuvwxyz"}])
    kept = [column.key for column in for_paper(table, "vwxyz").columns]
    assert kept == ["a", "b", "c", "v", "w", "z"]
    assert [column.key for column in for_paper(table, "z").columns] == ["a", "b", "c", "z"]


def test_long_words_are_broken_where_the_table_would_be_too_wide() -> None:
    columns = (Column("name", heading="name", name=True), *(Column(key, heading=key) for key in "xyz"))
    short = {"name": "adamw", **dict.fromkeys("xyz", "1.25 [1.05, 1.45]")}
    assert r"\begin{tabular}{lrrr}" in latex(Table(columns=columns, rows=[short]), fits=True)
    long = latex(Table(columns=columns, rows=[short | {"name": LONG}]), fits=True)
    width = re.search(r"\{p\{(\d+)pt\}rrr\}", long)
    assert width
    assert 50 <= int(width[1]) <= 200
    assert r"muon(\allowbreak{}betas=" in long
    assert r"\allowbreak" not in latex(Table(columns=columns, rows=[short | {"name": LONG}]))


def test_the_summary_has_six_columns_and_the_rest_stands_beside_it(results: Path, tmp_path: Path) -> None:
    files = present.write(analyze(results, FAST, targets=[2.4, 2.8]), tmp_path, figures=None)
    texts = {path.name: path.read_text() for path in files if path.suffix == ".tex"}
    assert set(texts) == {"summary.tex", "summary_full.tex", "doublings.tex", "definitions.tex"}
    assert columns(texts["summary.tex"]) <= MOST_COLUMNS < columns(texts["summary_full.tex"])
    for heading in ("optimizer", r"$B_{\mathrm{crit}}$", "verdict", "target"):
        assert heading in texts["summary.tex"].split(r"\midrule")[0]
    assert len(texts["summary.tex"].split(r"\midrule")[1].split(r"\\")) == len(
        texts["summary_full.tex"].split(r"\midrule")[1].split(r"\\")
    )


def test_a_column_without_a_value_is_not_shown_nor_are_names_alone() -> None:
    columns = Column("", "name", "name", name=True), *(Column(key, heading=key) for key in ("value", "other"))
    lines = ["why"]
    rows = [{"name": "a", "value": 1.0, "other": None}, {"name": "b", "value": None, "other": None}]
    some = Table(columns=columns, rows=rows, title="Numbers", lines=lines)
    none = Table(columns=columns, rows=rows[1:], title="Numbers", lines=lines)
    assert text(some, 80).split() == ["Numbers", "name", "value", "─" * 11, "a", "1", "b", "–", "why"]
    assert text(none, 80) == "why\n"
    assert list(some.frame().columns) == ["value", "other"]
    assert len(text(Table(columns=(columns[0],), rows=rows), 80).split()) == 4
