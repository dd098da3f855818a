"""Sections that questions add to the page, and what the marks of its figures say."""

import os
import re
import shutil
import sys
import time
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.formatting import ends, number
from analysis.present.figures import Picture, pictures
from analysis.present.findings import Analysis
from analysis.questions.compare.optimizers import compare
from cbs.errors import ResultsError
from cbs.registry import extensions
from cbs.trial.store import LOCK, STALE_SECONDS, Store
from extensions.report.page import REFRESH, Page, follow, report, running
from extensions.report.vector import drawn
from sweeps.folder.lock import Lock
from tests.factories import Truth, sweep

TITLE = re.compile(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="5"><title>([^<]*)</title>')


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Picture, str]]:
    """Figures of a sweep of which the smallest batch size never reached the target, and one optimizer diverged."""
    root = tmp_path_factory.mktemp("sweep")
    truths = {"<b>adamw": Truth(noise=0.05), "muon": Truth(noise=0.05, min_steps=60.0)}
    sweep(root, truths, batch_sizes=(2, 8, 32, 128), lrs=(1e-3, 2e-3, 4e-3), seeds=2, growth=1.2, max_steps=1500)
    shown = pictures(Analysis, analyze(root, AnalysisConfig(resamples=100)).answers)
    return {picture.name: (picture, str(drawn(picture, 1)["drawing"])) for picture in shown}


def said(drawing: str) -> list[str]:
    return [line for _, _, text in TITLE.findall(drawing) for line in unescape(text).split("\n")]


def test_every_point_says_its_numbers_and_its_interval(found: dict[str, tuple[Picture, str]]) -> None:
    picture, drawing = found["steps"]
    points = picture.table[picture.table["kind"] == "point"]
    lines = said(drawing)
    assert len(points) > 4
    for row in points.itertuples():
        assert (
            f"{row.optimizer}: batch size (sequences) {number(row.batch_size, 4)}, steps to validation loss < 2.4 "
            f"{number(row.steps, 4)} {ends((row.low, row.high))}" in lines
        )
    assert "<b>" not in drawing.replace("&lt;b&gt;", "")


def test_what_stands_elsewhere_than_at_its_number_says_nothing(found: dict[str, tuple[Picture, str]]) -> None:
    """An arrow at the edge of the axes is no number of the table."""
    picture, drawing = found["definitions"]
    numbers = {number(value, 4) for value in picture.table["value"].dropna()}
    for line in said(drawing):
        value = re.search(r"validation loss < 2.4 ([\d.,]+)", line)
        assert value
        assert value[1] in numbers, line


FAST = AnalysisConfig(resamples=100)
META = f'<meta http-equiv="refresh" content="{REFRESH}">'


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("extensions.report.page.drawings", lambda *_: [])
    root = tmp_path / "results" / "one"
    sweep(root, {"adamw": Truth()}, batch_sizes=(4, 16, 64), lrs=(2e-3, 4e-3), growth=1.5)
    return root


def test_a_sweep_runs_while_its_lock_is_touched(root: Path) -> None:
    assert not running(root)
    with Lock(Store(root), "cbs sweep"):
        assert running(root)
        assert running(root.parent), "one of a folder"
        old = time.time() - STALE_SECONDS - 5
        os.utime(root / LOCK, (old, old))
        assert not running(root), "killed on another machine, perhaps"
    assert not running(root)


def test_the_page_is_written_again_until_the_sweep_has_ended(root: Path) -> None:
    texts, told = [], []

    def write(refresh: int | None) -> Page:
        page = report(root, config=FAST, refresh=refresh)
        texts.append(page.path.read_text())
        return page

    lock = Lock(Store(root), "cbs sweep").__enter__()
    shutil.move(root / "trials", root / "hidden")  # nothing has ended yet
    (root / "trials").mkdir()

    def pause(seconds: float) -> None:
        assert seconds == REFRESH
        if not texts:
            (root / "trials").rmdir()
            shutil.move(root / "hidden", root / "trials")
        elif len(texts) == 2:
            lock.release()

    page = follow(root, write, told.append, pause=pause)
    assert [META in text for text in texts] == [True, True, False]
    assert ["A sweep is running" in text for text in texts] == [True, True, False]
    assert told[0].startswith("not yet: ")
    assert f"open {page.path} in a browser" in told[1]
    assert len(told) == 2
    assert texts[-1] == report(root, config=FAST).path.read_text()


def test_without_a_running_sweep_the_page_is_written_once(root: Path, run, tmp_path: Path) -> None:
    code, out, err = run("report", root, "--live", "--resamples", 100, "-o", tmp_path / "a.html")
    assert (code, out) == (0, f"report: {tmp_path / 'a.html'}\n")
    assert "no sweep is running in" in err
    assert not re.search("http-equiv=.refresh", (tmp_path / "a.html").read_text())


SECTION = "What a question adds"


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module ``section`` of a question."""
    module = SimpleNamespace(TITLE=SECTION, section=compare)
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
    assert f'<h2 id="added-1-title">{SECTION}</h2>' in text
    assert f'id="figure-{page.figures}"' in text
    assert f'id="figure-{page.figures + 1}"' not in text
    adding.section = lambda *_: None
    assert SECTION not in report(tmp_path, output=tmp_path / "page.html", config=FAST).path.read_text()


def test_a_section_that_cannot_be_read_leaves_the_page_of_a_sweep(tmp_path: Path, adding: SimpleNamespace) -> None:
    def broken(*_: object) -> None:
        raise ResultsError("no branch trained to the end of its window")

    adding.section = broken
    sweep(tmp_path, {"adamw": Truth()}, batch_sizes=(4, 16, 64), lrs=(2e-3, 4e-3), growth=1.5)
    text = report(tmp_path, output=tmp_path / "page.html", config=FAST).path.read_text()
    assert "Not shown: no branch trained to the end of its window" in text
