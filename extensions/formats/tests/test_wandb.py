"""Weights & Biases: a server that is not there, exported tables, and a real offline run."""

import importlib
import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers import import_runs
from cbs.errors import DataError, MissingDependencyError
from tests.analysis.read.importers.sources import CURVES, Curve, curves_of, settings, write_csv

pytestmark = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")

PATTERN = "{optimizer}-b{batch_size}-lr{lr}-s{seed}"
BOTH = {"optimizer": "adamw", "lr": "1e-3", "batch_size": "4"}
OFFLINE = """
import json, sys, wandb
folder, rows = sys.argv[1], json.loads(sys.argv[2])
config = {"lr": 1e-3, "opt": {"name": "adamw"}, "batch": 8}
with wandb.init(project="p", name="adamw-b8", dir=folder, config=config) as run:
    for step, value in rows:
        run.log({"train/loss": 1.0})
        run.log({"eval": {"loss": value}, "global_step": step})
"""


HAS_CONFIG = False  # Of an exported history


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    return write_csv(top / "a.csv", [{"_step": row["step"]} | row for row in rows])


class FakeRun:
    """A run of the public API: the names of ``wandb.apis.public.Run`` that matter here."""

    def __init__(self, curve: Curve, run_id: str, *, state: str = "finished") -> None:
        self.id, self.state = run_id, state
        self.name: str | None = curve.name
        self.path = ["team", "project", run_id]
        self.config = {"optim": {"name": "adamw", "lr": curve.lr}, "global_batch": curve.batch_size}
        self.summary = {"loss": 1.0, "accuracy": 0.5, "_step": 9}
        self._rows = curve.rows

    def scan_history(self, keys: list[str] | None = None, page_size: int = 1000) -> Iterator[dict[str, Any]]:
        """Rows that have all keys, as the real one; values that JSON has no number for are text."""
        assert isinstance(keys, list)
        rows: list[dict[str, Any]] = []
        for index, (step, value) in enumerate(self._rows):
            rows.append({"_step": 2 * index, "train/loss": 1.0})
            rows.append({"_step": 2 * index + 1, "loss": value if math.isfinite(value) else "NaN", "global_step": step})
        yield from ({key: row[key] for key in keys} for row in rows if all(key in row for key in keys))

    def history(self, *_: Any, **__: Any) -> None:
        raise AssertionError("run.history is a sample")


class FakeApi:
    runs_there: list[FakeRun]

    def __init__(self, overrides: dict[str, Any] | None = None, timeout: int | None = None) -> None: ...

    def run(self, path: str = "") -> FakeRun:
        for run in self.runs_there:
            if "/".join(run.path) == path:
                return run
        raise ValueError(f"Could not find run <Run {path} (not found)>")

    def runs(self, path: str | None = None, filters: dict[str, Any] | None = None) -> list[FakeRun]:
        return [run for run in self.runs_there if path == "/".join(run.path[:2])]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> type[FakeApi]:
    FakeApi.runs_there = [FakeRun(curve, f"id{index}") for index, curve in enumerate(CURVES)]
    monkeypatch.setattr(importlib.import_module("wandb"), "Api", FakeApi)
    return FakeApi


def test_a_project_is_read_in_full(tmp_path: Path, api: type[FakeApi]) -> None:
    wanted = settings(columns={"step": "global_step"}, pattern=PATTERN)
    imported = import_runs(["team/project"], tmp_path / "out", wanted)
    assert imported.format == "wandb"
    assert imported.notes == []
    assert curves_of(tmp_path / "out") == {
        f"team/project/id{index}": curve.rows for index, curve in enumerate(CURVES)
    }  # fmt: skip


def test_nan_comes_as_text_and_means_divergence(tmp_path: Path, api: type[FakeApi]) -> None:
    run = api.runs_there[0]
    run._rows = [(1, 3.0), (2, math.nan)]
    (result,) = import_runs(["team/project/id0"], tmp_path / "out", settings(pattern=PATTERN)).trials
    assert result.status == "DIVERGED"


@pytest.mark.parametrize(
    ("source", "changes", "words"),
    [
        ("team/project/nowhere", {}, "cannot read team/project/nowhere from Weights & Biases: Could not find run"),
        ("team/nothing", {}, "no runs as wandb at team/nothing: expected"),
        ("team/project", {"metric": "los"}, "no run has the metric 'los'; available: accuracy, loss"),
        (
            "team/project",
            {"columns": {"step": "iter"}},
            "run team/project/id0 logs loss, but never in one call with 'iter'",
        ),
    ],
)
def test_a_server_that_does_not_have_it_is_one_line(
    tmp_path: Path, api: type[FakeApi], source: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        import_runs([source], tmp_path / "out", settings(**{"pattern": PATTERN} | changes))
    assert "\n" not in str(caught.value)


def test_the_install_command_is_named_where_wandb_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match=r"pip install wandb$"):
        import_runs(["team/project"], tmp_path / "out", settings())


def history(path: Path, curve: Curve) -> Path:
    rows: list[dict[str, Any]] = []
    for index, (step, value) in enumerate(curve.rows):
        rows += [
            {"_step": 2 * index, "loss": "", "global_step": ""},
            {"_step": 2 * index + 1, "loss": value, "global_step": step},
        ]
    return write_csv(path, rows)


def test_exported_histories_are_one_run_per_file(tmp_path: Path) -> None:
    for curve in CURVES:
        history(tmp_path / "in" / f"{curve.name}.csv", curve)
    imported = import_runs(
        [tmp_path / "in"], tmp_path / "out", settings(columns={"step": "global_step"}, pattern=PATTERN)
    )
    assert imported.format == "wandb"
    assert curves_of(tmp_path / "out") == {curve.name: curve.rows for curve in CURVES}


def chart(path: Path, curves: list[Curve], spread: float = 0.0, against: str = "Step") -> Path:
    rows = []
    for step in [step for step, _ in curves[0].rows]:
        row: dict[str, Any] = {against: step}
        for index, curve in enumerate(curves):
            value = dict(curve.rows).get(step, "")
            row[f"{curve.name} - loss"] = value
            row[f"{curve.name} - loss__MIN"] = value - spread * index if value != "" else ""
            row[f"{curve.name} - loss__MAX"] = value
        rows.append(row)
    return write_csv(path, rows)


def test_an_exported_chart_is_one_run_per_column(tmp_path: Path) -> None:
    curves = [CURVES[0], Curve(8, 1e-3, 50, last=64)]
    imported = import_runs([chart(tmp_path / "chart.csv", curves)], tmp_path / "out", settings(pattern=PATTERN))
    assert imported.format == "wandb"
    assert curves_of(tmp_path / "out") == {curve.name: curve.rows for curve in curves}
    assert "may hold fewer points than were logged" in imported.notes[0]


def test_a_chart_against_anything_but_steps_is_refused_until_it_is_said_what_that_is(tmp_path: Path) -> None:
    source = chart(tmp_path / "chart.csv", CURVES[:2], against="trainer/updates")
    with pytest.raises(DataError, match=r"chart\.csv is drawn against 'trainer/updates', .*--column step=THEIRS"):
        import_runs([source], tmp_path / "out", settings(pattern=PATTERN))
    imported = import_runs([source], tmp_path / "out", settings(pattern=PATTERN, columns={"step": "trainer/updates"}))
    assert curves_of(tmp_path / "out") == {curve.name: curve.rows for curve in CURVES[:2]}
    assert not any("_step" in note for note in imported.notes)


def test_a_chart_of_merged_points_is_refused_with_the_remedy(tmp_path: Path) -> None:
    source = chart(tmp_path / "chart.csv", CURVES[:2], spread=0.1)
    with pytest.raises(
        DataError, match=r"chart\.csv, line 2, column 'adamw-b2-lr0\.002-s0 - loss': merged .*scan_history"
    ):
        import_runs([source], tmp_path / "out", settings(pattern=PATTERN))
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a real run that was never synced, longer than one block."""
    folder = tmp_path_factory.mktemp("offline")
    rows = [[step, 10.0 / step] for step in range(1, 200)] + [[200, "NaN"]]
    text = str(rows).replace("'", '"').replace('"NaN"', "NaN")
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    command = [sys.executable, "-c", OFFLINE, str(folder), text]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    if answer.returncode:  # it starts a service that listens on a socket, which sandboxes forbid
        pytest.skip(f"wandb cannot run here: {answer.stderr[-200:]}")
    return next(folder.rglob("*.wandb"))


def test_a_real_offline_run_comes_out_as_it_logged(tmp_path: Path, offline: Path) -> None:
    columns = {"step": "global_step", "batch_size": "config.batch", "lr": "config.lr", "optimizer": "config.opt.name"}
    before = offline.read_bytes()
    imported = import_runs([offline.parent.parent], tmp_path / "out", settings(metric="eval.loss", columns=columns))
    assert imported.format == "wandb"
    (result,) = imported.trials
    assert [(row.step, row.value) for row in result.evaluations[:-1]] == [(step, 10.0 / step) for step in range(1, 200)]
    assert math.isnan(result.evaluations[-1].value)
    assert (result.config.optimizer.name, result.config.batch_size, result.config.lr) == ("adamw", 8, 1e-3)
    assert offline.read_bytes() == before


def test_what_an_offline_run_logged_is_named_where_the_metric_is_not_there(tmp_path: Path, offline: Path) -> None:
    with pytest.raises(
        DataError, match=r"no run has the metric 'los'; available: eval\.loss, global_step, train/loss$"
    ):
        import_runs([offline], tmp_path / "out", settings(metric="los", columns={"step": "_step"}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-50], "cut off in the middle of a record, at byte"),
        (lambda content: content[: 2**15 + 5], "cut off"),  # in the header that begins every block
        (lambda content: content[:100] + b"x" + content[101:], "is damaged at byte"),
        (lambda content: b"", "not a file of an offline run"),
        (lambda content: b"x" * 100, "not a file of an offline run"),
    ],
)  # fmt: skip
def test_a_damaged_file_of_an_offline_run_is_one_line(tmp_path: Path, offline: Path, damage: Any, words: str) -> None:
    path = tmp_path / "run.wandb"
    path.write_bytes(damage(offline.read_bytes()))
    with pytest.raises(DataError, match=words) as caught:
        import_runs([path], tmp_path / "out", settings(metric="eval.loss", constants=BOTH))
    assert "run.wandb" in str(caught.value)
