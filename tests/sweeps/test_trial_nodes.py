"""Trials that are jobs of their own, ``--launch`` with a stand-in for ``sbatch --wait``, and trials of a ``--command``
over several nodes: what each runs, and who says when it is over."""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cbs.errors import ConfigError
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store
from sweeps.external.run import Job, call_nodes, join_nodes, run_command
from sweeps.running import worker
from sweeps.running.resources import Resources
from sweeps.running.worker import Setup, Worker
from tests.sweeps.test_external import PLACES, trainer, trial
from tests.sweeps.test_kill import DEADLINE, ROOT
from tests.sweeps.test_nodes import nodes, short

__all__ = ["nodes", "short"]

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
    """Runs one trial as a job that does ``then`` at its end; it waits until ``begins``."""
    spool, jobs, over = tmp_path / "queue", list[subprocess.Popen[bytes]](), threading.Event()
    spool.mkdir()
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setattr("sweeps.external.run.LOOK", 0.05)
    monkeypatch.setenv("QUEUE", str(spool))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def node(begins: Callable[[], bool]) -> None:
        while not ((spool / "job").exists() and begins()) and not over.wait(0.02):
            pass
        if not over.is_set():
            jobs.append(subprocess.Popen(["bash", (spool / "job").read_text().strip()], start_new_session=True))
            (spool / "code.new").write_text(f"{jobs[0].wait()}\n")
            (spool / "code.new").rename(spool / "code")

    def run(
        last: int, then: str, alive: Callable[[int], object] = print, begins: Callable[[], bool] = lambda: True
    ) -> TrialResult:
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
    heard: list[int] = []
    until = time.monotonic() + 60.0

    def begins() -> bool:
        """The job begins because its trial is alive while it waits."""
        return len(heard) > 3 or time.monotonic() > until

    result = queue(40, then="time.sleep(60)", alive=heard.append, begins=begins)
    assert result.status is TrialStatus.REACHED, result.message
    assert heard[:4] == [0] * 4
    output = (tmp_path / "runs" / "one" / "output.log").read_text()
    assert "Submitted batch job 17" in output
    assert "talks" in output
    assert not list((tmp_path / "runs" / "one").glob("job-*"))


def test_how_a_job_fails_is_said(queue: Queue) -> None:
    result = queue(8, then="raise SystemExit('no licence')")
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
        (here, False, "--launch needs --command"),
        (
            Resources(launch="sbatch", gpus_per_trial=1, address="host:1"),
            True,
            "--launch does not go with --gpus-per-trial",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            resources.check_devices("auto", command=command)


OF_NODES = """
import json, socket, sys, time
batch, lr, seed, out, nodes, rank, head, port = sys.argv[1:9]
assert nodes == "2"
if rank == "1":
    while True:
        try:
            with socket.create_connection((head, int(port))) as first:
                print("rank 1 has met", first.recv(9).decode(), flush=True)
                sys.exit(int(first.recv(9) or 0))  # waits for the first node, which never says that it is over
        except ConnectionRefusedError:
            time.sleep(0.05)
with socket.create_server(("", int(port))) as server:
    server.settimeout(200)
    other, _ = server.accept()
    other.sendall(b"rank 0")
    with open(out + "/log.jsonl", "a") as log:
        for step in range(0, 40, 2):
            log.write(json.dumps({"step": step, "loss": 4.0 - step / 10}) + "\\n"); log.flush()
    FAULT
    time.sleep(600)
"""
PLACES_OF_NODES = f"{PLACES} {{nodes}} {{node_rank}} {{head}} {{port}}"


def program(folder: Path, fault: str = "") -> str:
    (folder / "program.py").write_text(OF_NODES.replace("FAULT", fault))
    return f"{sys.executable} -S {folder / 'program.py'} {PLACES_OF_NODES}"


def test_the_nodes_of_a_trial_meet_and_the_first_one_says_when_it_is_over(tmp_path: Path) -> None:
    config = trial(trainer(command=program(tmp_path)))
    folder, meeting = tmp_path / "runs" / "one", "abc@localhost"
    other = dict[str, Any]()
    join = threading.Thread(
        target=lambda: other.update(join_nodes(config, folder, str(tmp_path), meeting, 1, 2)), daemon=True
    )
    join.start()
    result = run_command(config, folder, path=str(tmp_path), nodes=2, meeting=meeting)
    assert result.status is TrialStatus.REACHED, result.message
    join.join(20.0)
    assert "rank 1 has met rank 0" in (folder / "node-1" / "output.log").read_text()
    assert other == {"status": "BUDGET_EXHAUSTED"}  # the connection has ended: exit code 0


def test_a_node_that_fails_says_how(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    made = trainer(command=f"{sys.executable} -S -c 'raise SystemExit(\"port {{port}}\")' {PLACES_OF_NODES}")
    call_nodes(made, folder, "old@here", 2, 17, False)
    threading.Timer(0.5, call_nodes, (made, folder, "new@here", 2, 18, False)).start()
    answer = join_nodes(trial(made), folder, str(tmp_path), "new@here", 1, 2)
    assert answer["status"] == "FAILED"
    assert answer["message"] == "node 1: the command ended with exit code 1; its last output: port 18"


class FakeChild:
    """Says at once what it is told to, or waits until it is killed."""

    answers: dict[int, str | None]
    made: list["FakeChild"]

    def __init__(self) -> None:
        self.rank, self.killed, self.ended = len(self.made), threading.Event(), True
        self.made.append(self)

    def call(self, _: str, setup: Setup, place: Any, *args: Any, **how: Any) -> dict[str, Any]:
        status = self.answers[place.rank]
        assert place.meeting.endswith("@host0")
        if status is None:
            self.ended = self.killed.wait(2.0)
            return {"status": "FAILED", "message": "killed"}
        if status == "later":
            time.sleep(0.05)
            return {"status": "REACHED"}
        return {"status": status} | ({"message": f"rank {place.rank}"} if status == "FAILED" else {})

    def kill(self) -> None:
        self.killed.set()

    close = kill


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({0: "REACHED", 1: None}, {"status": "REACHED"}),
        ({0: "REACHED", 1: "BUDGET_EXHAUSTED"}, {"status": "REACHED"}),
        ({0: "later", 1: "FAILED"}, {"status": "REACHED"}),
        ({0: None, 1: "FAILED"}, {"status": "FAILED", "message": "rank 1"}),
        ({0: "FAILED", 1: None}, {"status": "FAILED", "message": "rank 0"}),
    ],
)
def test_the_first_node_or_one_that_fails_ends_a_trial(
    answers: dict[int, str | None], said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LAST_WORDS", 10.0 if answers[0] == "later" else 0.01)
    monkeypatch.setattr(worker, "Child", FakeChild)
    FakeChild.answers, FakeChild.made = answers, []
    setup = Setup(store=str(tmp_path), path=".", threads=1, prune_factor=None, silence=60.0, nodes=2)
    both = Worker(setup, "host0", [FakeChild])
    assert both.run({"batch_size": 8}, None) == said
    assert FakeChild.made[1].killed.is_set(), "no node goes on"
    assert all(child.ended for child in FakeChild.made), "nor was it waited for"
    both.close()


def test_nodes_are_of_a_cluster_and_of_a_command_that_asks_for_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nodes_per_trial needs --address"):
        Resources(nodes_per_trial=2).check_devices("cpu", command=True)
    with pytest.raises(ConfigError, match="--launch does not go with --set nodes_per_trial"):
        Resources(nodes_per_trial=2, launch="sbatch", address="auto").check_devices("cpu", command=True)
    with pytest.raises(ConfigError, match="nodes_per_trial needs --command"):
        Resources(nodes_per_trial=2, address="auto").check_devices("cpu", command=False)
    config = trial(trainer())
    with pytest.raises(ConfigError, match=r"no {node_rank}: each of the 2 nodes"):
        run_command(config, tmp_path / "one", path=".", nodes=2, meeting="a@b")
    alone = run_command(trial(trainer(command=f"echo {PLACES_OF_NODES}")), tmp_path / "two", path=".")
    assert " 1 0 localhost " in alone.message


RUNS_AT_ONCE = """#!/bin/bash
[[ $1 == --wait ]] || exit 2
echo "$2" >>"$JOBS"
exec bash "$2"
"""


BY_A_LAW = """
import json, math, sys
size, lr, seed, out = sys.argv[1:]
steps = (20 + 320 / int(size)) * (1 + math.log2(float(lr) / 0.2) ** 2 / 4)
with open(out + "/log.jsonl", "w") as log:
    for step in range(int(2 * steps)):
        log.write(json.dumps({"step": step, "loss": 4.0 * 2 ** (-step / steps)}) + "\\n")
"""


@pytest.mark.slow
def test_a_sweep_of_jobs_that_is_ended_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    for name, content in ("sbatch", RUNS_AT_ONCE), ("train.py", BY_A_LAW):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    jobs, trials = tmp_path / "jobs", tmp_path / "out" / "trials"
    jobs.touch()
    search = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "JOBS": str(jobs),
    }
    words = [
        *("sweep", "--optim", "sgd", "--command", f"{sys.executable} -S train.py {PLACES}", "--reads", "jsonl"),
        *("--metric", "loss", "--direction", "below", "--metric-unit", "nats", "--example-unit", "tree"),
        *("--target", "2", "--batch-sizes", "4,16,64", "--lrs", "0.1,0.2,0.4", "--seeds", "1"),
        *("--set", "max_steps=900", "--set", "policy=once", "--launch", "sbatch --wait", "-o", str(tmp_path / "out")),
    ]

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "cli", *words], cwd=tmp_path, text=True, env={**os.environ, **search},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    first, until = begin(), time.monotonic() + 300
    while first.poll() is None and time.monotonic() < until and len([*trials.glob("*/record.parquet")]) < 3:
        time.sleep(0.05)
    first.terminate()
    assert first.wait(120) == 130, first.stderr.read() if first.stderr else ""
    before, stored = jobs.read_text().split(), {path.parent.name for path in trials.glob("*/record.parquet")}
    assert 3 <= len(stored) < 9
    second = begin()
    assert second.wait(400) == 0, second.stderr.read() if second.stderr else ""
    again = jobs.read_text().split()[len(before) :]
    results = {each.trial_id: each for each in Store(tmp_path / "out").results()}
    assert len(results) == 9
    assert {Path(script).parent.name for script in again} == results.keys() - stored
    for each in results.values():
        size, lr = each.config.batch_size, each.config.lr
        assert each.steps_to_target == pytest.approx((20 + 320 / size) * (1 + math.log2(lr / 0.2) ** 2 / 4), rel=0.02)


@pytest.mark.slow
def test_a_sweep_whose_trials_take_two_nodes_of_ray(tmp_path: Path, nodes: Any) -> None:
    words = {
        "--command": program(tmp_path), "--reads": "jsonl", "--metric": "loss", "--direction": "below",
        "--target": "1.0", "--metric-unit": "nats", "--example-unit": "tree", "--optim": "adamw",
        "--batch-sizes": "4,8", "--lrs": "0.1", "--seeds": "1", "--address": nodes[0], "-o": str(tmp_path / "out"),
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "cli.py"), "sweep", *(part for pair in words.items() for part in pair)]
    for count, code, said in ((4, 2, "no 4 nodes can hold a trial of 1 cores"), (2, 0, "")):
        ended = subprocess.run(
            [*command, "--insecure", "--set", f"nodes_per_trial={count}"], cwd=ROOT, capture_output=True, text=True,
            timeout=DEADLINE, check=False,
        )  # fmt: skip
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert said in ended.stderr
    results = list(Store(tmp_path / "out").results())
    assert {(each.config.batch_size, each.status) for each in results} == {
        (4, TrialStatus.REACHED),
        (8, TrialStatus.REACHED),
    }
    logs = [*(tmp_path / "out" / "runs").glob("*/node-1/output.log")]
    assert [path.read_text().count("rank 1 has met rank 0") for path in logs] == [1, 1]
