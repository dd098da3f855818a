"""Workers and nodes come and go while a sweep runs: lost, idle, as many as asked for; the control service is gone."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import services

from cbs.trial.store import Store
from sweeps.running import cluster, control, tuning
from sweeps.running.cluster import EngineLost, c_without_errors
from sweeps.running.control import end_processes, refused
from sweeps.running.resources import Resources
from sweeps.running.run import MAX_LOSSES, Runs, SweepRun
from sweeps.search.search import Search
from tests.sweeps.simulation import small_sweep
from tests.sweeps.test_kill import COMMAND, DEADLINE, RAYLET, ROOT, descendants, reached, stored, undisturbed, wait_for

__all__ = ["undisturbed"]

NODES = """
import logging, sys
from ray.cluster_utils import Cluster
logging.disable()
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
print(cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "remove":
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
    else:
        nodes.append(cluster.add_node(num_cpus=1))
    print("done", flush=True)
cluster.shutdown()
"""


@pytest.fixture
def short() -> Iterator[str]:
    """A folder for Ray's files, with a name that its sockets can have."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="s-") as name:
        yield name


@pytest.fixture
def nodes(short: str) -> Iterator[tuple[str, Callable[[str], None]]]:
    """Address of a cluster of three nodes, and what adds another or removes one."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), "RAY_TMPDIR": short, "RAY_AUTH_MODE": "disabled"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    cluster = subprocess.Popen([sys.executable, "-c", NODES], env=os.environ | quiet, **pipes)

    def tell(word: str) -> None:
        cluster.stdin.write(f"{word}\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline() == "done\n"

    try:
        address = cluster.stdout.readline().strip()
        assert ":" in address
        yield address, tell
    finally:
        cluster.stdin.close()
        cluster.wait(timeout=DEADLINE)


@pytest.mark.slow
def test_nodes_that_go_and_come_change_nothing(undisturbed, tmp_path, nodes):
    (address, tell), folder = nodes, tmp_path / "nodes"
    command = [sys.executable, str(ROOT / "cli.py"), *COMMAND, "--address", address, "--insecure", "-o", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    for number, word in enumerate(["remove", "add", "remove"]):
        wait_for(lambda n=number: process.poll() is not None or stored(folder) >= 3 + 4 * n, "no trial finished")
        tell(word)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert "Traceback" not in err
    assert reached(folder) == reached(undisturbed)


STUCK = """
import sys, tempfile, time
from sweeps.running import control, scratch
control.STUCK_SECONDS = control.LOOK_SECONDS = 0.05
print(scratch.temporary_folder(), flush=True)
with control.watched(lambda: {gone}, lambda: print("the last words", file=sys.stderr, flush=True)):
    time.sleep({seconds})
"""


def listening() -> tuple[socket.socket, tuple[str, int]]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, server.getsockname()


def test_nobody_who_listens_is_refused_and_one_who_does_not_answer_is_not() -> None:
    server, place = listening()
    assert not control.refused(place)
    assert not control.silent(place)
    server.close()
    assert control.refused(place)
    assert control.silent(place)
    assert not control.refused(None)
    assert not control.silent(None)


@pytest.mark.parametrize(("gone", "seconds", "code"), [(True, 60, 1), (False, 1, 0)])
def test_a_process_that_waits_in_vain_ends_with_its_last_words_and_no_files(
    gone: bool, seconds: int, code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import ray\n" + STUCK.format(gone=gone, seconds=seconds)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == code
    assert done.stderr == ("the last words\n" if gone else "")
    folder = done.stdout.strip()
    assert folder
    assert not os.path.isdir(os.path.dirname(folder))


def test_a_child_that_is_dead_is_told_from_one_that_runs(tmp_path) -> None:
    link = tmp_path / "gcs_server"
    link.symlink_to("/bin/sleep")
    dead = control.died()
    assert not dead()
    child = subprocess.Popen([str(link), "60"])
    until = time.monotonic() + 30
    assert not dead()
    child.kill()
    while not dead():
        assert time.monotonic() < until
        time.sleep(0.02)
    child.wait()


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_a_cluster_without_tokens_is_refused_and_one_whose_head_dies_ends_the_sweep_within_a_minute(
    tmp_path, short, guarded
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, ray = f"{services.get_node_ip_address()}:{port}", Path(sys.executable).with_name("ray")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of the cluster"} if guarded else {"RAY_AUTH_MODE": "disabled"}
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **token}
    head = subprocess.Popen(
        [ray, "start", "--head", "--block", f"--port={port}", "--num-cpus=1", "--include-dashboard=false",
         f"--temp-dir={short}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=quiet,
    )  # fmt: skip
    try:
        wait_for(lambda: not refused((address.split(":")[0], port)), "no cluster")
        command = [sys.executable, str(ROOT / "cli.py"), *COMMAND, "--address", address, "-o", str(tmp_path / "sweep")]
        wait_for(lambda: descendants(head.pid, "gcs_server") and descendants(head.pid, RAYLET), "no cluster")
        if not guarded:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=ROOT,
                check=False,
                env=quiet | {"RAY_AUTH_TOKEN": "any"},
                timeout=DEADLINE,
            )
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert f"cbs: the cluster at {address} obeys everybody who reaches it" in done.stderr
            command.append("--insecure")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=quiet
        )
        wait_for(lambda: process.poll() is not None or stored(tmp_path / "sweep") >= 2, "no trial finished")
        assert process.poll() is None, process.communicate()
        (service,) = descendants(head.pid, "gcs_server")
        os.kill(service, signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1, err
        assert "started again" not in err
        (line,) = [line for line in err.splitlines() if line.startswith("cbs: ")]
        assert line.startswith("cbs: Ray has died (its control service is gone); every finished trial is kept in ")
        assert "Traceback" not in err
    finally:
        end_processes(Path(short))
        head.kill()
        head.wait()


def test_a_network_that_fails_is_silent_but_nobody_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, timeout: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", lost)
    assert control.silent(("10.0.0.1", 1))
    assert not control.refused(("10.0.0.1", 1))


def test_a_control_service_that_is_gone_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server, place = listening()
    server.close()
    monkeypatch.setattr(control, "address", lambda: place)
    monkeypatch.setattr(ray, "nodes", lambda: pytest.fail("it would never return"))
    with pytest.raises(EngineLost, match="control service is gone"):
        cluster.check_home()
    assert not issubclass(EngineLost, Exception)  # Tune would clean up, by calls that do not return


def test_what_c_says_while_ray_starts_is_not_seen_and_what_python_says_is(capfd: pytest.CaptureFixture[str]) -> None:
    with c_without_errors():
        os.write(2, b"of C\n")
    os.write(2, b"later\n")
    captured = capfd.readouterr()
    assert captured.err == "later\n"


def test_a_ray_whose_workers_are_never_heard_ends_the_sweep_and_one_of_a_cluster_may_take_longer(monkeypatch):
    monkeypatch.setattr(tuning, "check_home", lambda: None)
    monkeypatch.setattr(tuning, "HOME_SECONDS", 0.0)
    monkeypatch.setattr(tuning.time, "monotonic", lambda: 0.0)
    for address, silent, fatal in (None, 300.0, True), (None, 298.0, False), ("auto", 1e6, False):
        run = running([], heard=lambda config, place: None)
        mine = tuning_of(monkeypatch, [run], Resources(address=address))
        monkeypatch.setitem(tuning._runs, 7, mine)
        mine.silent = 1e9
        mine.check_home()
        assert run.fatal is None  # nothing is out
        mine.trials["a"] = mine.trials["b"] = SimpleNamespace(trial_id="t")  # type: ignore[assignment]
        tuning.Queue(7).on_trial_result("a", {"where": [{}]})
        mine.check_home()
        assert run.fatal is None
        mine.silent = silent
        mine.check_home()
        assert bool(run.fatal) is fatal
        assert not fatal or "no worker of Ray was heard for 300 s; see " in run.fatal


def test_a_trial_whose_worker_is_lost_goes_on_elsewhere_ten_times_and_then_ends_the_sweep(tmp_path):
    run = SweepRun(Search(small_sweep()), Store(tmp_path), 1.0)
    for losses in range(MAX_LOSSES + 1):
        assert run.fatal is None, losses
        started = run.next()
        run.lost(started[0])
    assert "its worker was lost 11 times" in run.fatal


@pytest.mark.parametrize(("asked", "most"), [(None, 3), (1, 1)])
def test_tune_holds_no_more_trials_than_run_and_one_that_waits(monkeypatch, asked, most):
    run = running(itertools.count())
    monkeypatch.setitem(tuning._runs, 7, tuning_of(monkeypatch, [run], Resources(workers=asked), room=2))
    handed = [tuning.Queue(7).suggest(str(number)) for number in range(5)]
    assert [each is not None for each in handed] == [True] * most + [False] * (5 - most)


def running(trials: Iterable[int], **more: Any) -> Any:
    """A sweep with so many trials left, which are numbered."""
    left = iter(trials)
    search = SimpleNamespace(sweep=small_sweep(), workers=0)
    run = SimpleNamespace(search=search, store=SimpleNamespace(root=Path()), silence=1.0, fatal=None, over=False)

    def following() -> Any:
        number = next(left, None)
        return None if number is None else (SimpleNamespace(to_dict=lambda: number), None)

    def take_in(config: Any, result: Any) -> None:
        run.over = result["last"]

    vars(run).update({"next": following, "take_in": take_in} | more)
    return run


def tuning_of(monkeypatch: pytest.MonkeyPatch, runs: list[Any], resources: Resources, room: int = 1) -> tuning.Tuning:
    monkeypatch.setattr(tuning, "check_placement", lambda *_: room)
    monkeypatch.setattr(Resources, "gpus_of_trial", lambda *_: 0.0)
    return tuning.Tuning(Runs(each for each in runs), resources)


class Told(Exception):
    """A sweep that cannot be chosen."""


def chosen(*runs: Any) -> Iterator[Any]:
    yield from runs
    raise Told


def test_a_worker_that_is_idle_waits_for_the_next_sweep_and_ends_with_the_last(monkeypatch):
    """Tune would end it, and another one takes seconds to start."""
    first, second = running(range(3)), running(range(2))
    mine = tuning_of(monkeypatch, [first, second], Resources(), room=2)
    monkeypatch.setitem(tuning._runs, 7, mine)
    queue, stop = tuning.Queue(7), tuning.StopWhenDone(7)
    assert [queue.suggest(name)["trial"] for name in "abc"] == ["0", "1", "2"]
    assert queue.suggest("x") is None
    queue.on_trial_complete("a", {"status": "REACHED", "last": False})
    assert queue.suggest("x") is None  # the worker takes the trial that waits
    queue.on_trial_complete("b", {"status": "REACHED", "last": False})
    assert queue.suggest("x")["trial"] is None
    assert queue.suggest("y") is None
    assert not stop("x", {})
    queue.on_trial_complete("c", {"status": "REACHED", "last": True})
    assert queue.suggest("d")["trial"] == "0"
    assert mine.run is second
    assert not stop("x", {})  # a worker is free
    assert queue.suggest("e")["trial"] == "1"
    assert [stop("x", {}), stop("d", {})] == [True, False]
    queue.on_trial_complete("x", {"done": True})
    for name, last in ("d", False), ("e", True):
        queue.on_trial_complete(name, {"status": "REACHED", "last": last})
    assert queue.suggest("f") == tuning.Searcher.FINISHED
    assert (mine.runs.run, mine.problem) == (None, None)


@pytest.mark.parametrize("why", ["other workers", "a problem", "fatal"])
def test_a_sweep_that_these_workers_cannot_run_ends_the_experiment(monkeypatch, why):
    first, second = running([0]), running([1], silence=2.0 if why == "other workers" else 1.0)
    mine = tuning_of(monkeypatch, [first], Resources())
    mine.runs = Runs(chosen(first, *([] if why == "a problem" else [second])))
    assert mine.next("a")["trial"] == "0"
    mine.back("a")
    first.over, first.fatal = True, "it fails" if why == "fatal" else None
    assert mine.next("b") == tuning.Searcher.FINISHED
    assert mine.runs.run is {"other workers": second, "a problem": None, "fatal": first}[why]
    assert isinstance(mine.problem, Told) == (why == "a problem")
    assert mine.ended
