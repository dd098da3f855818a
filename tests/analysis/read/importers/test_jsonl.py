"""Format ``jsonl``: a JSON object per line, one file per run."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.read.importers import import_runs
from cbs.errors import DataError
from tests.analysis.read.importers.sources import settings

HAS_CONFIG = False
KNOWN = {"batch_size": "4", "optimizer": "adamw", "lr": "1e-3"}


def write_run(top: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> Path:
    top.mkdir(parents=True)
    (top / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return top


def test_a_file_is_a_run_known_by_its_name_and_what_it_logs_as_lr_is_that_of_the_step(tmp_path: Path) -> None:
    for seed in (0, 1):
        rows = [{"step": step, "loss": 5.0 - step + seed, "lr": 0.1 * step} for step in (1, 2)]
        write_run(tmp_path / "in" / f"s{seed}", [*rows, {"step": 2, "grad_norm": 1.0}], {})
    found = import_runs([tmp_path / "in"], tmp_path / "out", settings(constants=KNOWN, pattern="s{seed}/log.jsonl"))
    assert found.detected[0].endswith("read as jsonl: 2 files of JSON lines")
    assert {(t.config.seed, t.config.lr, t.evaluations[-1].value) for t in found.trials} == {
        (0, 1e-3, 3.0),
        (1, 1e-3, 4.0),
    }


@pytest.mark.parametrize("line", ["[1]", "{'step': 1}", '{"step": 1', "7"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    write_run(tmp_path / "in", [{"step": 1, "loss": 3.0}], {})
    with open(tmp_path / "in" / "log.jsonl", "a") as file:
        file.write(f"\n{line}\n")
    with pytest.raises(DataError, match=r"log\.jsonl, line 3: not a JSON object"):
        import_runs([tmp_path / "in"], tmp_path / "out", settings(constants=KNOWN))


def test_a_file_of_several_runs_is_refused_with_what_to_make_of_it(tmp_path: Path) -> None:
    write_run(tmp_path / "in", [{"step": 1, "loss": 3.0, "size": size, "run": f"b{size}"} for size in (8, 16)], {})
    asked = settings(constants=KNOWN, columns={"batch_size": "size"})
    with pytest.raises(DataError, match="batch_size 8 and 16; a run has one; of several runs make a file each, or"):
        import_runs([tmp_path / "in"], tmp_path / "out", asked, format="jsonl")


@pytest.mark.parametrize("lines", [True, False])
def test_a_file_of_runs_with_names_is_a_table(tmp_path: Path, lines: bool) -> None:
    rows = [
        {"run": f"b{size}", "step": step, "loss": 4.0 - step, "opt": {"lr": 0.5}, "batch_size": size}
        for size in (8, 16)
        for step in (1, 2)
    ]
    file = tmp_path / ("runs.jsonl" if lines else "runs.json")
    file.write_text("\n".join(map(json.dumps, rows)) if lines else json.dumps(rows, indent=1))
    asked = settings(constants={"optimizer": "sgd"}, columns={"lr": "opt/lr"})
    found = import_runs([file], tmp_path / "out", asked)
    assert (found.format, [trial.config.batch_size for trial in found.trials]) == ("table", [8, 16])
    assert [trial.evaluations[-1].value for trial in found.trials] == [2.0, 2.0]


def test_iterations_of_detectron2_count_from_0(tmp_path: Path) -> None:
    """Its hooks evaluate after iteration 99, the hundredth."""
    rows = [{"iteration": at, "eta_seconds": 9.0, "data_time": 0.1, "bbox/AP": at / 10} for at in (99, 199)]
    source = write_run(tmp_path / "in", rows, {})
    given = {"metric": "bbox/AP", "direction": "above", "target": 15.0, "constants": KNOWN}
    report = import_runs([source], tmp_path / "out", settings(**given, columns={"step": "iteration"}))
    assert [point.step for point in report.trials[0].evaluations] == [100, 200]
    assert report.notes[0].startswith("detectron2 counts iterations from 0: 1 was added")


@pytest.mark.parametrize("other", [{}, {"updates": 4000}])
def test_a_counter_of_reports_is_told(tmp_path: Path, other: dict[str, Any]) -> None:
    rows = [{"training_iteration": at, "reports": at, "loss": 5.0 - at, **other} for at in (1, 2, 3)]
    write_run(tmp_path / "in", rows, {})
    for column in ("training_iteration", "reports"):
        asked = settings(constants=KNOWN, columns={"step": column})
        notes = import_runs([tmp_path / "in"], tmp_path / column, asked).notes
        expected = bool(other) or column == "training_iteration"
        assert any(note.startswith(f"{column} counts reports or epochs") for note in notes) is expected
