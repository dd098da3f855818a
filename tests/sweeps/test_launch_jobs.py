"""Trials that are jobs of their own: ``--launch`` with a stand-in for ``sbatch --wait``, and a queue that runs what it
is given apart from the launcher, as the node of a cluster does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cbs.errors import ConfigError
from cbs.trial.record import TrialResult, TrialStatus
from sweeps.external import job
from sweeps.external.job import Job
from sweeps.external.run import run_command
from sweeps.running.resources import Resources
from tests.sweeps.test_external import PLACES, trainer, trial

SBATCH = """#!/bin/bash
[[ $1 == --wait && $2 == --job-name=b8 ]] || exit 2
echo "Submitted batch job 17"
echo "$3" >"$QUEUE/new"; mv "$QUEUE/new" "$QUEUE/job"
while [[ ! -e $QUEUE/code ]]; do sleep 0.05; done
exit "$(cat "$QUEUE/code")"
"""
"""Hands the script to the queue, and ends as the job does."""

PROGRAM = """
import json, os, sys, time
out = sys.argv[4]
assert os.environ["CBS_FOLDER"] == out
print("talks", flush=True)
with open(out + "/log.jsonl", "a") as log:
    for step in range(0, LAST, 2):
        log.write(json.dumps({"step": step, "loss": 4.0 - step / 10}) + "\\n"); log.flush()
THEN
"""

Queue = Callable[..., TrialResult]


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Runs one trial as a job that begins after ``begins`` seconds, and does ``then`` at its end."""
    spool, jobs, over = tmp_path / "queue", list[subprocess.Popen[bytes]](), threading.Event()
    spool.mkdir()
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setattr(job, "LOOK", 0.05)
    monkeypatch.setenv("QUEUE", str(spool))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def node(begins: float) -> None:
        while not (spool / "job").exists() and not over.wait(0.02):
            pass
        if not over.wait(begins):
            jobs.append(subprocess.Popen(["bash", (spool / "job").read_text().strip()], start_new_session=True))
            (spool / "code.new").write_text(f"{jobs[0].wait()}\n")
            (spool / "code.new").rename(spool / "code")

    def run(begins: float, last: int, then: str, alive: Callable[[int], object] = print) -> TrialResult:
        script = tmp_path / "program.py"
        script.write_text(PROGRAM.replace("LAST", str(last)).replace("THEN", then))
        made = trainer(command=f"{sys.executable} -S {script} {PLACES}")
        machine = threading.Thread(target=node, args=(begins,))
        machine.start()
        try:
            return run_command(
                trial(made), tmp_path / "runs" / "one", path=str(tmp_path), alive=alive,
                launch="sbatch --wait --job-name=b{batch_size}",
            )  # fmt: skip
        finally:
            if not jobs:
                over.set()
            machine.join(20.0)
            assert all(each.poll() is not None for each in jobs), "the job has ended"

    yield run
    over.set()


def test_a_job_waits_in_its_queue_runs_and_ends_at_the_target(queue: Queue, tmp_path: Path) -> None:
    heard: list[float] = []
    result = queue(0.3, 40, then="time.sleep(60)", alive=lambda step: heard.append(time.monotonic()))
    assert result.status is TrialStatus.REACHED, result.message
    assert len(heard) > 3, "while it waits it is alive"
    output = (tmp_path / "runs" / "one" / "output.log").read_text()
    assert "Submitted batch job 17" in output
    assert "talks" in output
    assert not list((tmp_path / "runs" / "one").glob("job-*"))


def test_how_a_job_fails_is_said(queue: Queue) -> None:
    result = queue(0.0, 8, then="raise SystemExit('no licence')")
    assert result.status is TrialStatus.FAILED
    assert "exit code 1" in result.message
    assert "no licence" in result.message


def test_a_job_that_nobody_wants_any_more_ends_at_once(tmp_path: Path) -> None:
    made = Job(["true"], ["touch", str(tmp_path / "ran")], {}, tmp_path, str(tmp_path))
    assert made.waits
    later = Job(["true"], ["touch", str(tmp_path / "ran")], {"A": "b c"}, tmp_path, str(tmp_path))
    assert not made.waits, "a later attempt has taken its place"
    script = (tmp_path / "job.sh").read_text()
    next(tmp_path.glob("job-*")).unlink()
    assert subprocess.run(["bash", str(tmp_path / "job.sh")], check=False).returncode == 143
    assert not (tmp_path / "ran").exists()
    assert "export A='b c'" in script
    assert not later.waits


def test_a_job_takes_nothing_here_and_is_a_command() -> None:
    here = Resources(launch="sbatch --wait", workers=500, cpus_per_trial=10_000)
    assert (here.cpus, here.local_workers, here.parallel(8), here.gpus_of_trial("cuda")) == (1, 500, 500, 0.0)
    here.check_devices("auto", command=True)
    for resources, command, said in (
        (here, False, "give a --command"),
        (Resources(launch="sbatch", gpus_per_trial=1, address="host:1"), True, "leave out --gpus-per-trial"),
    ):
        with pytest.raises(ConfigError, match=said):
            resources.check_devices("auto", command=command)
