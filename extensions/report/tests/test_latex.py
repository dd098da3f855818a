"""Tables and the methods paragraph in a paper: LaTeX takes them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from analysis import analyze, present
from extensions.report.methods import methods
from tests.analysis.present.test_table import FAST, hard_to_set

NEURIPS = 5.5 * 72.27  # Width of the text in points of TeX


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on PATH")
def test_latex_takes_them_and_the_summary_is_no_wider_than_the_text(tmp_path: Path) -> None:
    hard_to_set(results := tmp_path / "results")
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
