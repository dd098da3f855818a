"""What a running trial must beat reaches it through the folder, whatever becomes of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbs.trial.store import Store
from sweeps.folder import bounds
from sweeps.folder.bounds import BOUNDS, Bounds, TrialBound


@pytest.fixture(autouse=True)
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LOOK_SECONDS", 0.0)


def test_a_trial_learns_of_what_is_told_of_it_and_of_nothing_else(tmp_path: Path) -> None:
    told = Bounds(Store(tmp_path))
    one, other = TrialBound(str(tmp_path), "one", None), TrialBound(str(tmp_path), "other", 70.0)
    assert (one.steps, other.steps) == (None, 70.0)
    told.tell({"one": 40.0})
    assert (one.steps, other.steps) == (40.0, 70.0)
    told.tell({"other": 50.0})
    assert (one.steps, other.steps) == (40.0, 50.0)
    told.close()
    assert not (tmp_path / BOUNDS).exists()
    assert (one.steps, other.steps) == (40.0, 50.0)


def test_a_trial_that_is_over_is_left_out(tmp_path: Path) -> None:
    told = Bounds(Store(tmp_path))
    told.tell({"one": 40.0})
    told.forget("one")
    told.tell({"other": 50.0})
    assert TrialBound(str(tmp_path), "one", None).steps is None


@pytest.mark.parametrize("text", ["", "[1]", '{"one": "x"}', '{"one"', "7", "[" * 100_000], ids=len)
def test_a_damaged_file_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / BOUNDS).write_text(text)
    assert TrialBound(str(tmp_path), "one", 70.0).steps == 70.0


def test_what_a_killed_sweep_has_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / BOUNDS).write_text('{"one": 1.0}')
    Bounds(Store(tmp_path))
    assert not (tmp_path / BOUNDS).exists()


def test_it_does_not_look_at_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LOOK_SECONDS", 3600.0)
    one = TrialBound(str(tmp_path), "one", None)
    assert one.steps is None
    Bounds(Store(tmp_path)).tell({"one": 40.0})
    assert one.steps is None
