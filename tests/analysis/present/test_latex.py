"""Tables and the methods paragraph in a paper: few columns, narrow enough, and LaTeX takes them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from analysis import analyze, present
from analysis.config import AnalysisConfig
from analysis.present.table import MOST_COLUMNS, Column, Table, for_paper, latex
from analysis.questions.report.methods import methods
from tests.factories import Truth, sweep

FAST = AnalysisConfig(resamples=100)
LONG = "muon(betas=[0.9, 0.95], match_rms_adamw=true, momentum=0.95, weight_decay=0.1)"
NEURIPS = 5.5 * 72.27
"""Width of the text in points of TeX."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sweeps, two targets, long names of variants, characters that LaTeX reads as its own, and doubts."""
    root = tmp_path_factory.mktemp("results")
    names = {LONG: Truth(noise=0.05), LONG.replace("0.95", "0.98"): Truth(noise=0.05), "50%_of_a#name": Truth()}
    for name in ("one", "another_sweep_of_a_long_name"):
        sweep(root / name, names, variants=True, batch_sizes=(8, 32, 128), lrs=(1e-3, 2e-3), growth=1.2, name=name)
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on PATH")
def test_latex_takes_them_and_the_summary_is_no_wider_than_the_text(results: Path, tmp_path: Path) -> None:
    present.write(analyze(results, FAST, targets=[2.4, 2.8]), tmp_path, figures=None)
    found = methods(results, targets=[2.4, 2.8], config=FAST)
    (tmp_path / "methods.tex").write_text("\n\n".join(found.paragraphs))
    (tmp_path / "sources.bib").write_text(found.bibtex)
    (tmp_path / "paper.tex").write_text(
        r"""\documentclass{article}
\usepackage{booktabs}\usepackage{url}\setlength{\textwidth}{5.5in}
\begin{document}
\sbox0{\input{summary.tex}\unskip}\typeout{WIDTH \the\wd0}
\input{summary.tex}

{\tiny \input{summary_full.tex} \input{definitions.tex}}

\input{methods.tex}
\bibliographystyle{plain}\bibliography{sources}
\end{document}
"""
    )
    steps = [["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper"]]
    steps += [["bibtex", "paper"], steps[0], steps[0]] if shutil.which("bibtex") else []
    for step in steps:
        done = subprocess.run(step, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-3000:]
    log = (tmp_path / "paper.log").read_text(errors="replace")
    width = re.search(r"WIDTH ([\d.]+)pt", log)
    assert width
    assert 100 < float(width[1]) <= NEURIPS
    if len(steps) > 1:
        assert "undefined" not in log
