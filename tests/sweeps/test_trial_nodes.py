"""Trials of a ``--command`` over several nodes: what each node runs, who says when it is over; with two nodes of Ray on
one machine, too."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cbs.errors import ConfigError
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.external.run import call_nodes, join_nodes, run_command
from sweeps.running import worker
from sweeps.running.resources import Resources
from sweeps.running.worker import Setup, Worker
from tests.sweeps.test_external import PLACES, trainer, trial
from tests.sweeps.test_kill import DEADLINE, ROOT
from tests.sweeps.test_nodes import NODES, short

__all__ = ["short"]

PROGRAM = """
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
    server.settimeout(20)
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
    (folder / "program.py").write_text(PROGRAM.replace("FAULT", fault))
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


@pytest.mark.slow
def test_a_sweep_whose_trials_take_two_nodes_of_ray(tmp_path: Path, short: str) -> None:
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), "RAY_TMPDIR": short}
    cluster = subprocess.Popen(
        [sys.executable, "-c", NODES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=quiet,
    )  # fmt: skip
    assert cluster.stdin
    assert cluster.stdout
    try:
        address = cluster.stdout.readline().strip()
        words = {
            "--command": program(tmp_path), "--reads": "jsonl", "--metric": "loss", "--direction": "below",
            "--target": "1.0", "--metric-unit": "nats", "--example-unit": "tree", "--optim": "adamw",
            "--batch-sizes": "4,8", "--lrs": "0.1", "--seeds": "1", "--address": address, "-o": str(tmp_path / "out"),
        }  # fmt: skip
        command = [sys.executable, str(ROOT / "cli.py"), "sweep", *(part for pair in words.items() for part in pair)]
        run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
        for count, code, said in ((4, 2, "no 4 nodes can hold a trial of 1 cores"), (2, 0, "")):
            ended = run(
                [*command, "--set", f"nodes_per_trial={count}"], cwd=ROOT, capture_output=True, text=True,
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
    finally:
        cluster.stdin.close()
        cluster.wait(timeout=DEADLINE)
