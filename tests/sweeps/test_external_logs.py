"""Logs of programs that are swept: half written, long, cut, and of another trial."""

import json
import os
import sys
from pathlib import Path

import pytest

from sweeps.external.curve import LoggedCurve
from sweeps.external.process import OUTPUT, Process
from tests.sweeps.test_external import trainer, trial


def test_a_line_that_is_half_written_is_not_read(tmp_path: Path) -> None:
    made = trainer(reads="csv")
    curve = LoggedCurve(made, trial(made), tmp_path, resumed=False)
    for text, values in (("step,loss\n1,4.0\n2,0", [4.0]), ("step,loss\n1,4.0\n2,0.75\n", [4.0, 0.75])):
        (tmp_path / "log.csv").write_text(text)
        assert curve.update(whole=False)
        assert [row.value for row in curve.evaluations] == values
    assert not curve.update(whole=False)
    (tmp_path / "log.csv").write_text("step,loss\n1,4.0\n2,0.75\n3,0.5")
    assert curve.update(whole=True)
    assert curve.evaluations[-1].value == 0.5


@pytest.mark.parametrize(("left", "said"), [([2, 3], "begins at step 2"), ([], "is empty")])
def test_a_log_that_loses_its_beginning_is_refused(tmp_path: Path, left: list[int], said: str) -> None:
    def log(steps: list[int]) -> None:
        lines = [json.dumps({"step": step, "loss": 4.0 - step}) for step in steps]
        (tmp_path / "log.jsonl").write_text("".join(f"{line}\n" for line in lines))

    curve = LoggedCurve(trainer(), trial(trainer()), tmp_path, resumed=False)
    log([0, 1])
    assert curve.update(whole=False)
    log(left)
    assert not curve.update(whole=False)
    assert (len(curve.evaluations), said in curve.problem) == (2, True), curve.problem
    log([0, 1, 2])  # it was being written anew
    assert curve.update(whole=True)
    assert (len(curve.evaluations), curve.problem) == (3, "")


def test_what_is_no_file_in_a_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 0, "loss": 3}\n')
    os.mkfifo(tmp_path / "pipe.jsonl")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere.jsonl").symlink_to("gone")
    curve = LoggedCurve(trainer(), trial(trainer()), tmp_path, resumed=False)
    assert [path.name for path in curve._files()] == ["log.jsonl"]
    assert curve.update(whole=True)


def test_of_a_program_that_talks_without_end_the_end_is_kept(tmp_path: Path) -> None:
    talks = "import os\nfor i in range(100): os.write(1, b'x' * 9999 + b'\\n')\nos.write(1, b'last words')"
    process = Process([sys.executable, "-S", "-c", talks], tmp_path, str(tmp_path), {}, most=2**16)
    try:
        assert process.wait(60)
        assert process.talked()
        assert (tmp_path / OUTPUT).stat().st_size <= 2**12
        assert process.last_words().endswith("| last words")
        assert not (process.talked() and process.talked())
    finally:
        process.end()


def test_a_log_of_another_trial_is_refused(tmp_path: Path) -> None:
    made = trainer(reads="table")
    curve = LoggedCurve(made, trial(made), tmp_path, resumed=False)
    (tmp_path / "log.csv").write_text("step,loss,batch_size\n1,4.0,16\n")
    assert not curve.update(whole=True)
    assert curve.problem.startswith("the log says that batch_size is 16, but the trial's is 8; does the command count")
    assert curve.hopeless


def test_a_program_that_trains_at_another_batch_size_is_found_out(tmp_path: Path) -> None:
    made = trainer(reads="report")
    curve = LoggedCurve(made, trial(made), tmp_path, resumed=False)
    (tmp_path / "report.jsonl").write_text('{"step": 1, "examples": 16, "loss": 4.0}\n')
    assert not curve.update(whole=True)
    assert "not steps times the batch size 8" in curve.problem


# -- again ---------------------------------------------------------------------------------------------------------
