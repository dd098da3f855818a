"""Where no batch sizes are given: what ``cbs sweep`` says beforehand and refuses, and what survives real SIGKILLs."""

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cbs.errors import CbsError
from sweeps.launching import launch, loop
from sweeps.launching.policies.rounds import ROUNDS
from sweeps.outlook.cost import Cost
from sweeps.running import cluster
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep
from tests.sweeps import faulty
from tests.sweeps.test_kill import DEADLINE, ROOT, end, in_this_process, reached, start, stored, wait_while_running
from tests.sweeps.test_nodes import nodes, short

Run = Callable[..., tuple[int, str, str]]
SWEEP = ("sweep", "--workload", "noisy_quadratic", "--optim", "sgd")
PROGRAM = (
    *("sweep", "--optim", "sgd", "--command", "python -c pass {batch_size} {lr} {seed} {folder} {steps}"),
    *("--reads", "jsonl", "--metric", "loss", "--direction", "below", "--metric-unit", "nats"),
    *("--example-unit", "tree"),
)


@pytest.mark.parametrize(
    ("words", "sizes", "seeds"),
    [
        ((*SWEEP, "--target", "0.4"), [16], [0]),
        ((*SWEEP, "--target", "0.4", "--seeds", "4,7"), [16], [4]),
        ((*SWEEP, "--target", "0.4", "--batch-sizes", "4,8", "--precision", "0.3"), [4, 8], [0, 1, 2]),
        ((*SWEEP, "--target", "0.4", "--set", "policy=once"), [4, 8, 16, 32, 64, 128, 256, 512], [0, 1, 2]),
        ((*SWEEP, "--budget", "20000"), [8, 32], [0, 1, 2]),
        # the largest batch sizes of the recipe do not fit into these, and are not asked for
        ((*SWEEP, "--budget", "2000"), [8, 32], [0, 1, 2]),
        ((*SWEEP, "--budget", "300"), [2, 8], [0, 1, 2]),
        ((*PROGRAM, "--target", "2", "--set", "max_steps=900"), [8, 32], [0]),
        ((*PROGRAM, "--budget", "400"), [4, 16], [0, 1, 2]),
    ],
)
def test_a_dry_run_says_what_it_begins_with(
    words: tuple[str, ...], sizes: list[int], seeds: list[int], tmp_path: Path, run: Run, children_here: None
) -> None:
    code, out, err = run(*words, "--dry-run", "--json", "-o", tmp_path / "there")
    assert code == 0, err
    report = json.loads(out)
    assert (report["axes"]["batch_sizes"], report["axes"]["seeds"]) == (sizes, seeds)
    assert ("depends on how they end" in " ".join(err.split())) == ("policy=once" not in words)
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "20000", "--max-runs", "5"), "--budget does not go with --max-runs"),
        (("--budget", "20000", "--lrs", "0.1,0.2"), "or give --batch-sizes"),
        (
            ("--budget", "20000", "--lrs", "0.1,0.2", "--batch-sizes", "4,8", "--precision", "0.3"),
            "--precision does not go with --lrs",
        ),
        (("--target", "0.4", "--max-runs", "0"), "--max-runs must be above 0"),
        (("--set", "device=cpu", "--set", "gpu_hour=2"), "--set gpu_hour does not go with --set device=cpu"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    words: tuple[str, ...], said: str, run: Run, children_here: None
) -> None:
    code, _, err = run(*SWEEP, *words, "--dry-run")
    assert (code, said in " ".join(err.split())) == (2, True)


class _Begun(CbsError):
    """Ends a sweep at its first trial, whose id is the message."""


@pytest.mark.parametrize(
    "words",
    [
        ("--target", "0.4"),
        ("--target", "0.4", "--recipe", "quick"),
        ("--target", "0.4", "--optim", "adamw", "--batch-sizes", "4..64", "--seeds", "2"),
        ("--target", "0.4", "--optim", "adamw", "--batch-sizes", "4,16", "--lrs", "0.1,0.2,0.4"),
        ("--target", "0.4", "--batch-sizes", "4,16", "--lrs", "sqrt:0.1@4", "--seeds", "7,3"),
        ("--target", "0.4", "--batch-sizes", "4,16", "--set", "search=grid"),
        ("--target", "0.4", "--axis", "momentum=0.5,0.9"),
        ("--target", "0.4", "--axis", "clip_norm=1,none"),
        ("--target", "0.4", "--set", "policy=once"),
        ("--target", "0.4", "--batch-sizes", "4,16", "--set", "target.training_loss=0.5"),
        ("--budget", "20000"),
        ("--budget", "5000,20000"),
        ("--budget", "5000,20000", "--set", "schedule.name=cosine"),
        ("--budget", "5000,20000", "--set", "schedule.name=cosine", "--batch-sizes", "4,16,64"),
        ("--budget", "5000", "--batch-sizes", "4,16", "--schedule", "late_switch(to=32)"),
    ],
)
def test_the_first_trial_that_a_dry_run_names_is_the_first_that_runs(
    words: tuple[str, ...], tmp_path: Path, run: Run, children_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "timed_apart", lambda *_: Cost())

    def begin(sweep: Sweep, folder: Path, **_: object) -> None:
        config = Search(sweep).next()
        raise _Begun(config.trial_id)

    monkeypatch.setattr(launch, "sweep", begin)
    monkeypatch.setattr(cluster, "PrestartedRay", lambda *_: contextlib.nullcontext())
    code, out, err = run(*SWEEP, *words, "--dry-run", "--json", "-o", tmp_path / "there")
    assert code == 0, err
    report = json.loads(out)
    first, *_ = report.get("sweeps", [report])[0]["first"]
    _, _, err = run(*SWEEP, *words, "-o", tmp_path / "there")
    assert err.splitlines()[-1] == f"cbs: {first['trial']}"


__all__ = ["nodes", "short"]

# Some 36 trials in five rounds; those at large batch sizes take seconds, so that a kill comes in the middle.
SLOW = json.dumps(dict.fromkeys(("16", "32", "64", "128"), "slow"))
SETTINGS = ["max_steps=1000", "max_examples=8000", "workload.after=30", f"workload.acts={SLOW}"]
FINDS = [
    "sweep", "--workload", "tests.sweeps.faulty:workload", "--optim", "sgd", "--target", "0.2",
    "--precision", "0.35", "--workers", "2", *(part for each in SETTINGS for part in ("--set", each)),
]  # fmt: skip


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


def test_a_dry_run_is_told_in_lines(tmp_path: Path, run: Run, children_here: None) -> None:
    _, out, _ = run(*SWEEP, "--target", "0.4", "--axis", "clip_norm=1,none", "--dry-run", "-o", tmp_path / "there")
    assert out.count("batch sizes   16\nseeds         0\n") == 2
    assert out.count("price         B_crit within 20%") == 2


KILLS = 10


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
