"""Nodes of a cluster come and go while a sweep runs, all of them on this machine, in a process of their own; and Ray's
control service is gone."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

from sweeps.running import control
from tests.sweeps.test_kill import COMMAND, DEADLINE, ROOT, reached, stored, undisturbed, wait_for

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
