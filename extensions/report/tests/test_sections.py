"""Sections that questions add to the page."""

import shutil
from pathlib import Path

import pytest

from analysis.questions.local.section import TITLE
from cbs.errors import ResultsError
from extensions.report.page import report
from tests.analysis.questions.branched_runs import write
from tests.analysis.questions.test_local import CHECKPOINTS, FAST
from tests.factories import Truth, sweep


def test_branches_are_a_section_of_the_page_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extensions.report.page.drawings", lambda *_: [])
    sweep(tmp_path / "sweep", {"adamw": Truth()}, batch_sizes=(4, 16, 64), lrs=(2e-3, 4e-3), growth=1.5)
    write(tmp_path / "branches", checkpoints=CHECKPOINTS[:2])
    page = report(tmp_path, output=tmp_path / "page.html", config=FAST)
    text = page.path.read_text()
    assert f'<h2 id="added-1-title">{TITLE}</h2>' in text
    assert text.count("Local critical batch size along the run") >= 1
    assert f'id="figure-{page.figures}"' in text
    assert f'id="figure-{page.figures + 1}"' not in text
    shutil.rmtree(tmp_path / "branches")
    assert TITLE not in report(tmp_path, output=tmp_path / "page.html", config=FAST).path.read_text()


def test_branches_that_cannot_be_read_leave_the_page_of_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ResultsError("no branch trained to the end of its window")

    monkeypatch.setattr("analysis.questions.local.section.section", broken)
    sweep(tmp_path, {"adamw": Truth()}, batch_sizes=(4, 16, 64), lrs=(2e-3, 4e-3), growth=1.5)
    text = report(tmp_path, output=tmp_path / "page.html", config=FAST).path.read_text()
    assert "Not shown: no branch trained to the end of its window" in text
