"""Nodes of a cluster come and go while a sweep runs; all of them on this machine, in a process of their own."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray._private import services

from sweeps.running.control import end_processes, refused
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
