"""The released data of Shallue et al.: their protocol, against a slow twin of their code; whatever else stands in a
study."""

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.config import AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.read.importers import import_runs
from analysis.read.results import load
from cbs.errors import DataError
from cbs.trial.store import Store
from extensions.published_data.tests.reference import steps_to_result
from extensions.published_data.tests.studies import batch_science
from tests.analysis.read.importers.sources import CURVES, FLAGS, settings, write_csv
from tests.analysis.read.importers.test_properties import JSON, SLOW, imports_or_tells

EVERY = 50
GOAL = 2.4
STATES = ("batch_size", "lr", "seed")  # Facts that a study states itself


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    """A study that states what :data:`tests.analysis.read.importers.test_renaming.KNOWN` states."""
    study = batch_science(top, 4, {1: ("COMPLETE", 1e-3, [(1, 1.0)])}, optimizer="adamw")
    about = {"parameters": {"learning_rate": 1e-3} | config, "status": "COMPLETE", "trial_id": 1}
    (study / "1" / "metadata.json").write_text(json.dumps(about))
    write_csv(study / "1" / "measurements.csv", rows)
    return top


def rows(steps_to_target: float, last: int = 1000) -> list[tuple[int, float]]:
    steps = range(0, last + 1, EVERY)
    return [(step, 5.0 if step == 0 else GOAL + math.log(steps_to_target / step)) for step in steps]


def trials(best: float) -> dict[int, tuple[str, float, list[tuple[int, float]]]]:
    """Ids out of order as text; two trials with one learning rate, of which the second is the best of all."""
    return {
        2: ("COMPLETE", 0.01, rows(best * 1.9)),
        10: ("COMPLETE", 0.1, rows(best * 1.5)),
        9: ("COMPLETE", 0.1, rows(best)),
        1: ("INCOMPLETE", 0.2, rows(best / 3, last=200)),
        3: ("INFEASIBLE", 1.0, [*rows(best / 2, last=300), (350, math.nan)]),
        4: ("COMPLETE", 0.02, rows(5000.0)),
    }


def tree(top: Path, **changes: Any) -> Path:
    for batch_size in (8, 32, 128, 512):
        batch_science(top, batch_size, trials(120 + 3200 / batch_size), **changes)
    return top


def test_steps_to_result_are_theirs_to_one_evaluation(tmp_path: Path) -> None:
    tree(tmp_path / "in")
    import_runs([tmp_path / "in"], tmp_path / "out", settings(metric="val/loss"))
    results = load(tmp_path / "out")
    (group,) = results.groups
    assert (group.workload, group.optimizer) == ("mnist/simple_cnn", "nesterov_momentum")
    (answer,) = answers(results, AnalysisConfig(resamples=100))
    for point in answer.points:
        study = tmp_path / "in" / "mnist" / "simple_cnn" / "nesterov_momentum" / str(point.batch_size)
        theirs = steps_to_result(study, "val/loss", GOAL)
        assert theirs[1] < point.steps_to_target <= theirs[0]
        assert point.best_lr == pytest.approx(0.1, rel=1e-12)
        assert point.seeds == 1


def test_statuses_follow_the_protocol(tmp_path: Path) -> None:
    tree(tmp_path / "in")
    imported = import_runs([tmp_path / "in"], tmp_path / "out", settings(metric="val/loss"))
    assert imported.to_json()["statuses"] == {"BUDGET_EXHAUSTED": 4, "DIVERGED": 4, "REACHED": 12}
    assert "ignored 4 INCOMPLETE trials" in imported.notes
    assert "kept 4 INFEASIBLE trials as DIVERGED, without their curves" in imported.notes
    diverged = [result for result in Store(tmp_path / "out").results() if result.status == "DIVERGED"]
    assert [result.evaluations for result in diverged] == [[]] * 4


def test_one_study_one_workload_and_special_folders(tmp_path: Path) -> None:
    tree(tmp_path / "in")
    tree(tmp_path / "in" / "solution_quality")
    tree(tmp_path / "in", optimizer="sgd", train_steps=0, early_stopping=True)
    wanted = settings(metric="val/loss")
    imported = import_runs([tmp_path / "in"], tmp_path / "all", wanted)
    assert len(load(tmp_path / "all").groups) == 3
    assert imported.to_json()["workloads"] == ["mnist/simple_cnn", "solution_quality/mnist/simple_cnn"]
    assert "4 studies had a budget of time, not of steps (train_steps 0)" in imported.notes
    assert "4 studies stopped bad trials early" in imported.notes
    one = import_runs([tmp_path / "in/mnist/simple_cnn/sgd/32"], tmp_path / "one", wanted)
    assert one.to_json()["batch_sizes"] == [32]
    workload = import_runs([tmp_path / "in/mnist/simple_cnn/sgd"], tmp_path / "workload", wanted)
    assert workload.to_json()["batch_sizes"] == [8, 32, 128, 512]
    assert {result.config.max_steps for result in workload.trials if result.evaluations} == {1000}


def replace(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: (s / "study.json").write_text("{"), "study.json"),
        (lambda s: (s / "study.json").write_text("[]"), "it is not a mapping"),
        (lambda s: (s / "study.json").write_text("[" * 100_000), "study.json"),
        (lambda s: replace(s / "study.json", batch_size="x"), "'x' is not a number"),
        (lambda s: replace(s / "study.json", dataset=None), "None is not a name"),
        (lambda s: (s / "2" / "metadata.json").unlink(), "cannot read .*2/metadata.json"),
        (lambda s: replace(s / "2" / "metadata.json", status="DONE"), "'DONE' is unknown"),
        (lambda s: replace(s / "2" / "metadata.json", parameters={}), "no parameters with a learning_rate"),
        (lambda s: replace(s / "2" / "metadata.json", parameters={"learning_rate": -1}), "above 0"),
        (lambda s: (s / "2" / "measurements.csv").unlink(), "cannot read .*2/measurements.csv"),
        (lambda s: (s / "2" / "measurements.csv").write_bytes(b""), "2/measurements.csv is empty"),
        (lambda s: (s / "2" / "measurements.csv").write_text("step,a\n1,2\n"), "no column 'val/loss'; it has step, a"),
        (lambda s: (s / "notes").mkdir(), "whole numbers"),
        (lambda s: (s / "study.json").unlink(), "no runs as batch_science at .*with study.json"),
    ],
)  # fmt: skip
def test_a_broken_tree_is_one_line_and_leaves_nothing(tmp_path: Path, damage: Any, words: str) -> None:
    study = batch_science(tmp_path / "in", 8, trials(100))
    damage(study)
    with pytest.raises(DataError, match=words) as caught:
        import_runs([tmp_path / "in"], tmp_path / "out", settings(metric="val/loss"), format="batch_science")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_imported_curves_give_their_critical_batch_size(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for batch_size in {curve.batch_size for curve in CURVES}:
        curves = [curve for curve in CURVES if curve.batch_size == batch_size]
        own = {index: ("COMPLETE", curve.lr, curve.rows) for index, curve in enumerate(curves)}
        batch_science(tmp_path / "in", batch_size, own)
    found = "--column", "loss=val/loss", "-o", tmp_path / "out"
    code, out, err = run("import", tmp_path / "in", *found, *FLAGS, "--json")
    assert code == 0, err
    assert (json.loads(out)["format"], json.loads(out)["runs"]) == ("batch_science", 15)
    code, out, err = run("analyze", tmp_path / "out", "--figures", "none", "--json", "--resamples", "100")
    assert code == 0, err
    assert json.loads(out)["fits"][0]["critical_batch_size"] == pytest.approx(32.0, rel=0.1)


@SLOW
@given(JSON, st.sampled_from(["status", "parameters", "trial_id", None]))
def test_any_json_in_a_trial(value: Any, key: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        study = batch_science(Path(folder) / "in", 8, {1: ("COMPLETE", 0.1, CURVES[0].rows)})
        path = study / "1" / "metadata.json"
        path.write_text(json.dumps(value if key is None else json.loads(path.read_text()) | {key: value}))
        imports_or_tells(Path(folder) / "in", "batch_science", metric="val/loss")


@SLOW
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=3), st.binary(max_size=80))
def test_any_parameters_and_any_measurements(parameters: dict[str, Any], content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = CURVES[0].rows
        study = batch_science(Path(folder) / "in", 8, {1: ("COMPLETE", 0.1, rows), 2: ("COMPLETE", 0.1, rows)})
        path = study / "1" / "metadata.json"
        data = json.loads(path.read_text())
        path.write_text(json.dumps(data | {"parameters": parameters | {"learning_rate": 0.1}}))
        imports_or_tells(Path(folder) / "in", "batch_science", metric="val/loss")
        (study / "2" / "measurements.csv").write_bytes(content)
        (Path(folder) / "out").rename(Path(folder) / "before")
        imports_or_tells(Path(folder) / "in", "batch_science", metric="val/loss")
