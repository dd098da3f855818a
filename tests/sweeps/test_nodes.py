"""Nodes of a cluster come and go while a sweep runs; all of them on this machine, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_nodes_that_go_and_come_change_nothing(undisturbed, tmp_path, short):
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), "RAY_TMPDIR": short}
    cluster = subprocess.Popen(
        [sys.executable, "-c", NODES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=quiet,
    )  # fmt: skip
    try:
        address = cluster.stdout.readline().strip()
        assert ":" in address
        folder: Path = tmp_path / "nodes"
        command = [sys.executable, str(ROOT / "cli.py"), *COMMAND, "--address", address, "-o", str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for number, word in enumerate(["remove", "add", "remove"]):
            wait_for(lambda n=number: process.poll() is not None or stored(folder) >= 3 + 4 * n, "no trial finished")
            cluster.stdin.write(f"{word}\n")
            cluster.stdin.flush()
            assert cluster.stdout.readline() == "done\n"
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, out + err
        assert "Traceback" not in err
        assert reached(folder) == reached(undisturbed)
    finally:
        cluster.stdin.close()
        cluster.wait(timeout=DEADLINE)
