"""``cbs report --live``: the page is written again while a sweep runs, and for the last time when it has ended."""

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from analysis.config import AnalysisConfig
from cbs.errors import ResultsError
from cbs.trial.store import LOCK, STALE_SECONDS, Store
from extensions.report.page import REFRESH, Page, follow, report, running
from sweeps.folder.lock import Lock
from tests.factories import Truth, sweep

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


def test_an_error_of_a_sweep_that_has_ended_is_one(root: Path) -> None:
    def write(refresh: int | None) -> Page:
        raise ResultsError("nothing")

    with pytest.raises(ResultsError, match="nothing"):
        follow(root, write, lambda line: None)
