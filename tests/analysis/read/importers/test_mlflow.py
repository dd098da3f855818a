"""MLflow's file store, laid out as MLflow lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers import import_runs
from cbs.errors import ConfigError, DataError
from tests.analysis.read.importers.sources import CURVES, curves_of, settings, write_csv

BOTH = {"optimizer": "adamw", "lr": "1e-3", "batch_size": "4"}
META = """artifact_uri: file:///tmp/{id}/artifacts
end_time: 1721450907230
entry_point_name: ''
experiment_id: '0'
lifecycle_stage: {stage}
run_id: {id}
run_name: {name}
run_uuid: {id}
start_time: 1721450907221
status: {status}
tags: []
user_id: someone
"""


def write(
    store: Path, run: str, metrics: dict[str, list[tuple[float, Any]]], params: dict[str, Any] | None = None, *,
    name: str = "wistful-ant-659", stage: str = "active", status: int = 3,
) -> Path:  # fmt: skip
    folder = store / "0" / run
    (store / "0" / "tags").mkdir(parents=True, exist_ok=True)
    (store / "0" / "meta.yaml").write_text("experiment_id: '0'\nlifecycle_stage: active\nname: Default\n")
    for kind in ("metrics", "params", "tags", "artifacts"):
        (folder / kind).mkdir(parents=True)
    (folder / "meta.yaml").write_text(META.format(id=run, name=name, stage=stage, status=status))
    (folder / "tags" / "mlflow.runName").write_text(name)
    for title, points in metrics.items():
        (folder / "metrics" / title).parent.mkdir(parents=True, exist_ok=True)
        (folder / "metrics" / title).write_text("".join(f"1721450907221 {value} {step}\n" for step, value in points))
    for title, value in (params or {}).items():
        (folder / "params" / title).write_text(str(value))
    return folder


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    titles = [title for title in rows[0] if title != "step"]
    write(top, "0123", {title: [(row["step"], row[title]) for row in rows] for title in titles}, config)
    return top


@pytest.mark.parametrize("above", [".", "mlruns", "mlruns/0"])
def test_a_store_comes_back(tmp_path: Path, above: str) -> None:
    for index, curve in enumerate(CURVES[:4]):
        params = {"optim.lr": curve.lr, "batch": curve.batch_size, "optimizer": "adamw"}
        metrics = {"val/loss": curve.rows, "train/loss": [(step, 9.0) for step in range(5)]}
        write(tmp_path / "in" / "mlruns", f"id{index}", metrics, params, name=curve.name)
    columns = {"lr": "config.optim.lr", "batch_size": "config.batch", "optimizer": "config.optimizer"}
    imported = import_runs([tmp_path / "in" / above], tmp_path / "out", settings(metric="val/loss", columns=columns))
    assert (imported.format, imported.notes) == ("mlflow", [])
    assert "4 runs with meta.yaml" in imported.detected[0]
    assert list(curves_of(tmp_path / "out").values()) == [curve.rows for curve in CURVES[:4]]
    assert {(trial.config.batch_size, trial.config.lr) for trial in imported.trials} == {
        (curve.batch_size, curve.lr) for curve in CURVES[:4]
    }


@pytest.mark.parametrize(("first", "columns", "noted"), [(0.0, {}, True), (0.25, {}, False), (0, {"step": "n"}, False)])
def test_steps_that_may_be_those_of_a_lightning_trainer_are_noted(
    tmp_path: Path, first: float, columns: dict[str, str], noted: bool
) -> None:
    points = [(3, 2.0), (7, 1.0)]
    epochs = [(step, first + index) for index, (step, _) in enumerate(points)]
    write(tmp_path / "in", "id0", {"loss": points, "epoch": epochs, "n": [(3, 4), (7, 8)]})
    imported = import_runs([tmp_path / "in"], tmp_path / "out", settings(constants=BOTH, columns=columns))
    assert ["1 runs have epochs from 0 on: if a Lightning Trainer" in note for note in imported.notes] == [True] * noted


def test_runs_are_known_by_name_and_tags_are_settings(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", "id0", {"loss": [(1, 3.0)]}, name="adamw-b8")
    (folder / "tags" / "peak").write_text("0.5")
    columns = {"lr": "config.tags.peak", "run": "config.tags.mlflow.runName"}
    wanted = settings(pattern="{optimizer}-b{batch_size}", columns=columns)
    (trial,) = import_runs([tmp_path / "in"], tmp_path / "out", wanted).trials
    assert trial.message == "imported from run adamw-b8"
    assert (trial.config.optimizer.name, trial.config.batch_size, trial.config.lr) == ("adamw", 8, 0.5)


def test_deleted_runs_are_left_out_and_said_and_so_are_runs_that_stopped(tmp_path: Path) -> None:
    write(tmp_path / "in", "id0", {"loss": [(1, 3.0)]})
    write(tmp_path / "in", "id1", {"loss": [(1, 3.0)]}, stage="deleted")
    write(tmp_path / "in" / ".trash", "id2", {"loss": [(1, 3.0)]})
    imported = import_runs([tmp_path / "in"], tmp_path / "out", settings(constants=BOTH))
    assert [trial.message for trial in imported.trials] == ["imported from run 0/id0"]
    assert imported.notes == ["left out 2 deleted runs"]
    write(tmp_path / "more", "id0", {"loss": [(1, 3.0)]}, status=1)
    imported = import_runs([tmp_path / "more"], tmp_path / "again", settings(constants=BOTH))
    assert imported.notes == ["1 runs are still running: their curves end where they stopped"]
    write(tmp_path / "gone", "id0", {"loss": [(1, 3.0)]}, stage="deleted")
    with pytest.raises(DataError, match=r"no runs as mlflow at .*; left out 1 deleted runs"):
        import_runs([tmp_path / "gone"], tmp_path / "x", settings(constants=BOTH))


def test_a_run_that_diverged(tmp_path: Path) -> None:
    write(tmp_path / "in", "id0", {"loss": [(1, 3.0), (2, "nan")]})
    (trial,) = import_runs([tmp_path / "in"], tmp_path / "out", settings(constants=BOTH)).trials
    assert trial.status == "DIVERGED"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("metrics/loss", "1 2.0 3\n1 x 4\n", r"metrics/loss, line 2: 'x' is not a number; .*copy the run again"),
        ("metrics/loss", "1\n", "line 1: '1' is not a timestamp, value and step"),
        ("metrics/loss", "1 2.0 3\n1 2.5 3\n", "two values at step 3: 2 and 2.5"),
        ("metrics/loss", "1 2.0 1.5\n", "1.5 step is not a whole number"),
        ("meta.yaml", "a: [", r"cannot read .*meta\.yaml"),
        ("params/x", b"\xff", r"cannot read .*params/x.*copy the run again"),
    ],
)
def test_a_broken_run_is_one_line(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    folder = write(tmp_path / "in", "id0", {"loss": [(1, 3.0)]})
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=words) as caught:
        import_runs([tmp_path / "in"], tmp_path / "out", settings(constants=BOTH))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_nothing_there_and_two_formats_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no runs as mlflow at .*: expected mlruns"):
        import_runs([tmp_path], tmp_path / "out", settings(), format="mlflow")
    write(tmp_path, "id0", {"loss": [(1, 3.0)]})
    write_csv(tmp_path / "loss.csv", [{"run": "a", "step": 1, "loss": 1}])
    words = (
        r"may be mlflow \(1 runs with meta\.yaml and .*\) or table \(1 table, loss\.csv with columns loss, run, step"
    )
    with pytest.raises(ConfigError, match=words):
        import_runs([tmp_path], tmp_path / "out", settings(constants=BOTH))
