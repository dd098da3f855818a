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


@pytest.mark.parametrize("reads", ["nanogpt", "csv"])
def test_of_a_long_log_only_what_came_is_read(reads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch size stands at the start, 2 x 8 tokens."""
    made = trainer(reads=reads, tokens_per_example=2, metric="val_loss")
    head, line = {
        "nanogpt": ("tokens per iteration will be: 16\n", "step {0}: train loss {1:.4f}, val loss {1:.4f}\n"),
        "csv": ("step,val_loss\n", "{0},{1:.4f}\n"),
    }[reads]
    monkeypatch.setattr("sweeps.external.curve._WINDOW", 200)
    log, curve = tmp_path / (OUTPUT if reads == "nanogpt" else "log.csv"), LoggedCurve(
        made, trial(made), tmp_path, resumed=False
    )  # fmt: skip
    log.write_text(head)
    sizes: list[int] = []
    points = LoggedCurve._points
    monkeypatch.setattr(
        LoggedCurve,
        "_points",
        lambda self, source, *rest: (
            sizes.append(sum(path.stat().st_size for path in source.iterdir())) or points(self, source, *rest)
        ),
    )
    for at in range(60):
        with log.open("a") as file:
            file.writelines(line.format(10 * at + step, 9 - 0.01 * (10 * at + step)) for step in range(10))
        assert curve.update(whole=False), curve.problem
        assert [(row.step, row.value) for row in curve.evaluations][-1] == (10 * at + 9, round(8.91 - 0.1 * at, 4))
    assert len(sizes) == 60
    assert [row.step for row in curve.evaluations] == list(range(600))
    assert max(sizes) < 1500 < log.stat().st_size / 4
    with log.open("a") as file:  # a step back, which is no continuation
        file.write(line.format(300, 1.0))
    assert not curve.update(whole=False)
    assert "goes back from step 599 to 300" in curve.problem
    log.write_text(head + line.format(0, 5.0) + line.format(700, 2.0))  # another log in its place
    assert curve.update(whole=False) is False
    assert [row.value for row in curve.evaluations] == [5.0, 2.0]
    log.write_text(head.replace("16", "32") + "".join(line.format(step, 4.0) for step in range(800)))
    assert curve.update(whole=False) == (reads == "csv")
    assert curve.hopeless == (reads == "nanogpt")


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
