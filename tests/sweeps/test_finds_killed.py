"""A sweep that finds its batch sizes, killed again and again or on a cluster. Real processes, real SIGKILL."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sweeps.launching.policies.rounds import ROUNDS
from tests.sweeps import faulty
from tests.sweeps.test_kill import DEADLINE, ROOT, end, in_this_process, reached, start, stored, wait_while_running
from tests.sweeps.test_nodes import nodes, short

__all__ = ["nodes", "short"]

# Some 36 trials in five rounds; those at large batch sizes take seconds, so that a kill comes in the middle.
SLOW = json.dumps(dict.fromkeys(("16", "32", "64", "128"), "slow"))
SETTINGS = ["max_steps=1000", "max_examples=8000", "workload.after=30", f"workload.acts={SLOW}"]
FINDS = [
    "sweep", "--workload", "tests.sweeps.faulty:workload", "--optim", "sgd", "--target", "0.2",
    "--precision", "0.35", "--workers", "2", *(part for each in SETTINGS for part in ("--set", each)),
]  # fmt: skip
KILLS = 10


def rounds(folder: Path) -> list[dict[str, Any]]:
    """What every round knew and added, without what pruned trials took, which depends on those beside them."""
    (written,) = json.loads((folder / ROUNDS).read_text())
    for one in written["rounds"]:
        del one["examples"]
        for estimate in one["estimates"]:
            del estimate["examples"], estimate["runs"]
    return [written["asked"], *written["rounds"]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(faulty.ACTS, "slow", lambda found: found)
        return in_this_process(tmp_path_factory.mktemp("finds") / "undisturbed", FINDS)


@pytest.mark.slow
def test_killed_ten_times_it_finds_the_same_sizes_with_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    chance, killed = random.Random(0), tmp_path / "killed"
    process = start(killed, what=FINDS)
    for _ in range(KILLS):
        before = stored(killed)
        wait_while_running(process, lambda n=before: stored(killed) > n)
        time.sleep(chance.random())
        assert process.poll() is None
        end(process)
        process = start(killed, what=FINDS)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert "Traceback" not in err
    assert len(rounds(undisturbed)) > 4
    assert rounds(killed) == rounds(undisturbed)
    assert reached(killed) == reached(undisturbed)


@pytest.mark.slow
def test_a_cluster_of_several_nodes_finds_the_same_sizes(undisturbed: Path, tmp_path: Path, nodes: Any) -> None:
    where = ["--address", nodes[0], "--insecure", "-o", str(tmp_path / "nodes")]
    command = [sys.executable, str(ROOT / "cli.py"), *FINDS, *where]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rounds(tmp_path / "nodes") == rounds(undisturbed)
    assert reached(tmp_path / "nodes") == reached(undisturbed)
