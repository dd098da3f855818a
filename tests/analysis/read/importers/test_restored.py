"""Logs of runs that were restored from a checkpoint: what was done twice counts as it was done last."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers import import_runs
from analysis.read.importers.importing import ImportReport
from cbs.errors import DataError
from tests.analysis.read.importers.sources import settings, write_csv

FIRST = [(10, 5.0), (20, 4.0), (30, 3.5), (40, 3.2), (50, 3.0)]
AGAIN = [(40, 3.1), (60, 2.3), (70, 2.2), (80, 2.1)]
"""Restored at step 30: steps 40 and 50 were undone, and 50 was not measured again."""

STANDING = FIRST[:3] + AGAIN
KNOWN = {"batch_size": "4", "optimizer": "adamw", "lr": "1e-3"}


def ray(top: Path, points: list[tuple[int, float]]) -> Path:
    folder = top / "train_1"
    folder.mkdir(parents=True)
    lines = [{"step": step, "eval": {"loss": value}, "config": {"lr": 0.5}} for step, value in points]
    (folder / "result.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flat = [{"step": step, "eval/loss": value, "config/lr": 0.5} for step, value in points]
    write_csv(folder / "progress.csv", flat)
    return folder


def table(top: Path, points: list[tuple[int, float]]) -> Path:
    return write_csv(top / "t.csv", [{"run": "a", "step": step, "loss": value} for step, value in points])


def imported(source: Path, out: Path, **changes: Any) -> ImportReport:
    format = changes.pop("format", "auto")
    return import_runs([source], out, settings(**{"constants": KNOWN} | changes), format=format)


def curve(report: ImportReport) -> list[tuple[int, float]]:
    return [(row.step, round(row.value, 4)) for row in report.trials[0].evaluations]


def test_rows_after_the_restore_count_and_a_note_says_so(tmp_path: Path) -> None:
    report = imported(table(tmp_path / "in", FIRST + AGAIN), tmp_path / "out")
    assert curve(report) == STANDING
    (note,) = [note for note in report.notes if note.startswith("1 run went back to an earlier step")]
    assert note.endswith("the rows after that count, and 2 earlier ones do not")
    # loss 2.4 on the line in ln step between 3.1 at 40 and 2.3 at 60
    assert report.trials[0].steps_to_target == pytest.approx(40 * 1.5 ** (0.7 / 0.8), rel=1e-3)


def test_the_two_files_of_a_trial_of_ray_are_read_alike(tmp_path: Path) -> None:
    folder = ray(tmp_path / "in", FIRST + AGAIN)
    given: dict[str, Any] = {"columns": {"loss": "eval/loss", "lr": "config/lr"}, "constants": KNOWN | {"lr": "0.5"}}
    of_json = imported(folder.parent, tmp_path / "json", **given)
    assert of_json.format == "jsonl"
    of_csv = imported(folder / "progress.csv", tmp_path / "csv", format="csv", **given)
    assert curve(of_json) == curve(of_csv) == STANDING
    assert of_json.notes == of_csv.notes != []
    assert {each.config.lr for each in (*of_json.trials, *of_csv.trials)} == {0.5}


def test_several_restores_and_a_run_that_has_not_caught_up(tmp_path: Path) -> None:
    points = [(step, 9.0 - step) for step in range(1, 6)] + [(step, 8.5 - step) for step in (4, 5, 6)] + [(3, 6.5)]
    assert curve(imported(table(tmp_path, points), tmp_path / "out")) == [(1, 8.0), (2, 7.0), (3, 6.5)]


@pytest.mark.parametrize(
    "points",
    [
        FIRST + [(step, value + 0.1) for step, value in FIRST],  # begins anew: another run, or the same one
        [(10, 5.0), (20, 4.0), (20, 4.1), (30, 3.0), (30, 3.1)],  # two runs, row by row
        [(10, 5.0), (30, 3.0), (20, 4.0), (40, 2.9), (20, 4.1), (50, 2.8), (30, 3.1)],  # in no order
    ],
)
def test_what_may_be_two_runs_is_refused(tmp_path: Path, points: list[tuple[int, float]]) -> None:
    with pytest.raises(DataError, match=r"has two values at step \d0: \d and \d\.1; remove one, or distinguish"):
        imported(table(tmp_path, points), tmp_path / "out")


def test_two_metrics_in_one_column_are_no_restore(tmp_path: Path) -> None:
    """As in a table of MLflow's ``get_metric_history``."""
    logged = [("train_loss", step, 3.0 - step / 100) for step in range(10, 110, 10)]
    logged += [("val_loss", step, 3.1 - step / 100) for step in range(20, 110, 20)]
    source = write_csv(tmp_path / "t.csv", [{"run": "a", "key": key, "step": at, "loss": x} for key, at, x in logged])
    with pytest.raises(DataError, match=r"differ in 'key' \(train_loss, val_loss\): keep the rows of one kind"):
        imported(source, tmp_path / "out")


def test_rows_in_another_order_are_no_restore(tmp_path: Path) -> None:
    shuffled = [STANDING[at] for at in (0, 1, 3, 4, 2, 5, 6)]
    assert curve(imported(table(tmp_path, shuffled), tmp_path / "out")) == STANDING


def test_a_counter_that_begins_anew_where_training_is_resumed_is_no_restore(tmp_path: Path) -> None:
    """Losses 8, 7, ... 3 at steps 10 to 60; resumed at 60 as 0, so that 2.9 at step 20 is that of step 80."""
    points = [(step, 9 - step / 10) for step in range(10, 70, 10)] + [(20, 2.9), (40, 2.7)]
    with pytest.raises(DataError, match="goes back from step 60 to 20 with the value that it had at 60"):
        imported(table(tmp_path / "anew", points), tmp_path / "a")
    restored = [*points[:6], (20, 7.1), (40, 5.1)]
    assert imported(table(tmp_path / "restored", restored), tmp_path / "b").trials[0].evaluations[-1].value == 5.1
