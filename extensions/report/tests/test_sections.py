"""Sections that questions add to the page."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.config import AnalysisConfig
from analysis.questions.compare.optimizers import compare
from cbs.errors import ResultsError
from cbs.registry import extensions
from extensions.report.page import report
from tests.factories import Truth, sweep

FAST = AnalysisConfig(resamples=100)
TITLE = "What a question adds"


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module ``section`` of a question."""
    module = SimpleNamespace(TITLE=TITLE, section=compare)
    monkeypatch.setitem(sys.modules, "of_a_question", module)  # type: ignore[arg-type]
    others = extensions.modules

    def modules(kind: str, package: str = "") -> Any:
        return [("of_a_question", Path())] if kind == "section" else others(kind, package)

    monkeypatch.setattr(extensions, "modules", modules)
    return module


def test_a_question_adds_a_section_to_the_page_of_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adding: SimpleNamespace
) -> None:
    monkeypatch.setattr("extensions.report.page.drawings", lambda *_: [])
    sweep(
        tmp_path / "sweep", {"adamw": Truth(), "muon": Truth()}, batch_sizes=(4, 16, 64), lrs=(2e-3, 4e-3), growth=1.5
    )
    page = report(tmp_path, output=tmp_path / "page.html", config=FAST)
    text = page.path.read_text()
    assert f'<h2 id="added-1-title">{TITLE}</h2>' in text
    assert f'id="figure-{page.figures}"' in text
    assert f'id="figure-{page.figures + 1}"' not in text
    adding.section = lambda *_: None
    assert TITLE not in report(tmp_path, output=tmp_path / "page.html", config=FAST).path.read_text()


def test_a_section_that_cannot_be_read_leaves_the_page_of_a_sweep(tmp_path: Path, adding: SimpleNamespace) -> None:
    def broken(*_: object) -> None:
        raise ResultsError("no branch trained to the end of its window")

    adding.section = broken
    sweep(tmp_path, {"adamw": Truth()}, batch_sizes=(4, 16, 64), lrs=(2e-3, 4e-3), growth=1.5)
    text = report(tmp_path, output=tmp_path / "page.html", config=FAST).path.read_text()
    assert "Not shown: no branch trained to the end of its window" in text
