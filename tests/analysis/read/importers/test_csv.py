"""Format ``csv``: the log of one run, of which no column is taken for a fact about the run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers import import_runs
from cbs.errors import DataError
from tests.analysis.read.importers.sources import settings, write_csv

HAS_CONFIG = False
KNOWN = {"batch_size": "4", "optimizer": "adamw", "lr": "1e-3"}


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    top.mkdir(parents=True)
    write_csv(top / "log.csv", rows)
    return top


def test_the_learning_rate_of_a_step_is_not_that_of_the_run(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 5.0 - step, "lr": 0.1 * step} for step in (1, 2)]
    source = write_run(tmp_path / "in", rows, {})
    (trial,) = import_runs([source], tmp_path / "out", settings(constants=KNOWN), format="csv").trials
    assert (trial.config.lr, trial.evaluations[-1].value) == (1e-3, 3.0)


def test_a_metric_that_deepspeed_writes_against_samples_is_asked_about(tmp_path: Path) -> None:
    metric = "Train_Samples_train_loss"  # The file that its csv_monitor writes
    source = write_run(tmp_path / "in", [{"step": 4 * at, metric: 5.0 - at} for at in (1, 2)], {})
    known = settings(constants=KNOWN, metric=metric)
    with pytest.raises(DataError, match="drawn against samples, not updates: say so with --column examples=step, or"):
        import_runs([source], tmp_path / "out", known, format="csv")
    known = replace(known, columns={"examples": "step"})
    (trial,) = import_runs([source], tmp_path / "out", known, format="csv").trials
    assert [row.step for row in trial.evaluations] == [1, 2]
