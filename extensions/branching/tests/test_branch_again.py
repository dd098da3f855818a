"""Branches whose checkpoints have changed, whose trunk diverged, and that go on after a kill."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from cbs.trial.record import TrialResult
from extensions.branching.tests.test_branch import asked, branched, started
from sweeps.running import tuning

__all__ = ["started"]


class Killed(Exception):
    """In place of a kill."""


@pytest.mark.slow
def test_random_kills_end_in_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: Any) -> None:
    branched(tmp_path / "whole")
    run, rng = tuning.run_search, np.random.default_rng(3)
    kills = 0
    for left in rng.integers(0, 6, size=5).tolist():

        def dying(runs: Any, *others: Any, left: int = left) -> None:
            save = runs.run.store.save
            count = iter(range(left))

            def saving(result: TrialResult) -> None:
                if next(count, None) is None:
                    raise Killed
                save(result)

            runs.run.store.save = saving
            run(runs, *others)

        monkeypatch.setattr(tuning, "run_search", dying)
        try:
            branched(tmp_path / "cut")
        except Killed:
            kills += 1
    monkeypatch.setattr(tuning, "run_search", run)
    branched(tmp_path / "cut")
    assert kills >= 2
    whole, cut = (
        {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob("*")
            if path.name in ("record.parquet", "steps.parquet") or path.suffix == ".pt"
        }
        for folder in (tmp_path / "whole", tmp_path / "cut")
    )
    assert whole == cut
    assert len(whole) == 2 * 13 + 2


def test_branches_of_a_trunk_that_diverged_are_refused(tmp_path: Path, started: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"trunk of sgd ended as DIVERGED .*learning rate below 1000"):
        branched(tmp_path, asked(optimizers=(Choice(name="sgd"),), lrs=(1000.0,)))
    assert len(started) == 1


def test_a_checkpoint_that_is_gone_or_changed_is_told(tmp_path: Path, started: list[str]) -> None:
    branched(tmp_path, at="25%")
    (path,) = (tmp_path / "kept").rglob("*.pt")
    shutil.rmtree(tmp_path / "kept")
    started.clear()
    branched(tmp_path, at="25%")  # written again, with the same content
    assert len(started) == 1
    assert path.exists()
