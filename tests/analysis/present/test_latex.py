"""Tables in a paper: few columns, narrow enough."""

import re
from pathlib import Path

import pytest

from analysis import analyze, present
from analysis.config import AnalysisConfig
from analysis.present.table import MOST_COLUMNS, Column, Table, for_paper, latex
from tests.factories import Truth, sweep

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
