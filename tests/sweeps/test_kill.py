"""A sweep that is killed and run again ends like one that was left alone. Real processes, real SIGKILL."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import analysis
import cli
from cbs.record import TrialStatus
from cbs.store import Store
from cbs.training import run_trial
from sweeps.running.cluster import remove_stale_folders
from tests.sweeps.alone import without_ray

ROOT = Path(__file__).resolve().parents[2]
# Some 30 trials of a tenth of a second each: enough that a kill comes in the middle.
SETTINGS = ["workload.dimension=100", "max_steps=500", "max_examples=2000"]
AXES = ["--optim", "sgd", "--batch-sizes", "4..32", "--seeds", "2", "--target", "0.4"]
COMMAND = ["sweep", "--workload", "noisy_quadratic", *AXES, *(part for s in SETTINGS for part in ("--set", s))]
DEADLINE = 600.0


def start(folder: Path, workers: int = 2, more: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "cli.py"), *COMMAND, "--workers", str(workers), "-o", str(folder), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(folder: Path) -> None:
    """Run the sweep to its end with one worker, since every worker imports torch and Ray, which takes seconds."""
    process = start(folder, workers=1)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err


def stored(folder: Path) -> int:
    return len(list(folder.glob("trials/*/record.parquet")))


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def processes_of(pid: int) -> list[str]:
    """Command lines of the processes of the private Ray that process ``pid`` started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"cbs-ray-{pid}-" in line:
            found.append(line)
    return found


def reached(folder: Path) -> dict[str, bytes]:
    """Bytes of every trial that reached the target, and the status of all."""
    content: dict[str, bytes] = {}
    store = Store(folder)
    for result in store.results():
        content[result.trial_id] = result.status.encode()
        if result.status is TrialStatus.REACHED:
            for path in (store.trials / result.trial_id).glob("*.parquet"):
                content[f"{result.trial_id}/{path.name}"] = path.read_bytes()
    return content


def fits(folder: Path) -> list[dict]:
    """What the analysis says of a sweep."""
    return analysis.analyze(folder).to_json()["fits"]


def in_this_process(folder: Path) -> Path:
    """The same command without Ray."""
    with without_ray(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cbs", *COMMAND, "-o", str(folder)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert stop.value.code == 0
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    return in_this_process(tmp_path_factory.mktemp("kill") / "undisturbed")


def kill_driver(folder: Path, after: int) -> int:
    """Start the sweep, SIGKILL its main process once ``after`` more trials are stored, wait for its Ray to go."""
    process, before = start(folder), stored(folder)
    wait_for(lambda: process.poll() is not None or stored(folder) >= before + after, "no trial finished")
    assert process.poll() is None, "the sweep ended before it could be killed"
    process.kill()
    process.communicate()
    wait_for(lambda: not processes_of(process.pid), "processes of a killed sweep stay behind")
    return process.pid


def test_a_killed_sweep_leaves_nothing_behind_and_continues(undisturbed, tmp_path):
    pid = kill_driver(tmp_path / "killed", after=3)
    in_this_process(tmp_path / "killed")
    assert reached(tmp_path / "killed") == reached(undisturbed)
    assert fits(tmp_path / "killed") == fits(undisturbed)
    remove_stale_folders()
    assert not list(Path(tempfile.gettempdir()).glob(f"cbs-ray-{pid}-*"))


@pytest.mark.slow
def test_a_killed_worker_costs_its_trial_one_more_start_and_no_more(undisturbed, tmp_path):
    process = start(tmp_path / "worker")
    wait_for(lambda: stored(tmp_path / "worker") >= 2, "no trial finished")
    workers = subprocess.run(["pgrep", "-f", "ray::[A-Za-z]*Trainable"], capture_output=True, text=True, check=False)
    mine = [int(pid) for pid in workers.stdout.split() if descends_from(int(pid), process.pid)]
    assert mine
    os.kill(mine[0], signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert reached(tmp_path / "worker") == reached(undisturbed)


@pytest.mark.slow
def test_a_killed_raylet_is_replaced_and_nobody_else_notices(tmp_path):
    acts = "workload.acts=" + json.dumps({"8": "slow", "16": "slow"})
    trials = ["--batch-sizes", "8,16", "--lrs", "0.1", "--seeds", "1", "--target", "0.4", "--set", "max_steps=300"]
    what = ["sweep", "--workload", "tests.sweeps.faulty:workload", "--optim", "sgd", *trials, "--set", acts]
    quick = {f"RAY_health_check_{name}": "1000" for name in ("period_ms", "timeout_ms")}
    quick |= {"RAY_health_check_initial_delay_ms": "0", "RAY_health_check_failure_threshold": "3"}
    folder = tmp_path / "raylet"
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *what, "-o", str(folder), "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **quick},
    )  # fmt: skip
    lock = folder / "sweep.lock"
    wait_for(lambda: lock.exists() and '"step"' in lock.read_text(), "no trial runs")
    found = subprocess.run(["pgrep", "-x", "raylet"], capture_output=True, text=True, check=False)
    mine = [int(pid) for pid in found.stdout.split() if descends_from(int(pid), process.pid)]
    assert len(mine) == 1
    os.kill(mine[0], signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert json.loads(out)["statuses"] == {"REACHED": 2}
    assert "Ray has died; it is started again" in err
    assert "Traceback" not in err
    for result in Store(folder).results():
        assert str(result.evaluations) == str(run_trial(result.config).evaluations)
    wait_for(lambda: not processes_of(process.pid), "processes stay behind")


@pytest.mark.slow
def test_a_second_sweep_is_refused_while_the_first_runs_and_its_files_stay(undisturbed, tmp_path, run):
    process = start(tmp_path / "two")
    wait_for(lambda: stored(tmp_path / "two") >= 2, "no trial finished")
    theirs = tmp_path / "two" / "trials" / ".tmp-being-written"
    theirs.mkdir()
    code, _, err = run(*COMMAND, "-o", tmp_path / "two")
    assert code == 2
    assert f"process {process.pid} on " in err
    assert theirs.is_dir()
    code, out, _ = run("status", tmp_path / "two", "--json")
    (told,) = json.loads(out)
    assert (code, told["state"], told["owner"]["pid"]) == (0, "running", str(process.pid))
    code, _, err = run("clean", tmp_path / "two")
    assert code == 2
    theirs.rmdir()
    process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    assert reached(tmp_path / "two") == reached(undisturbed)
    assert "two: idle" in run("status", tmp_path / "two")[1]


@pytest.mark.parametrize(
    "sent",
    [signal.SIGTERM, *(pytest.param(other, marks=pytest.mark.slow) for other in (signal.SIGINT, signal.SIGHUP))],
)
def test_an_interrupt_is_one_line_and_keeps_what_is_finished(tmp_path, sent):
    dead = subprocess.Popen(["true"])
    dead.wait()
    stale = Path(tempfile.mkdtemp(prefix=f"cbs-ray-{dead.pid}-"))  # of a sweep that was killed
    process = start(tmp_path / "interrupted", workers=1)
    wait_for(lambda: stored(tmp_path / "interrupted") >= 2, "no trial finished")
    process.send_signal(sent)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert "to go on: cbs sweep" in err
    assert "Traceback" not in err
    assert stored(tmp_path / "interrupted") >= 2
    assert not stale.exists()
    wait_for(lambda: not processes_of(process.pid), "processes of an interrupted sweep stay behind")


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(3))
def test_three_kills_at_random_moments(undisturbed, tmp_path, draw):
    total, chance = stored(undisturbed), random.Random(draw)
    for _ in range(3):
        kill_driver(tmp_path / "killed", after=chance.randint(1, max(1, total // 6)))
    finish(tmp_path / "killed")
    assert reached(tmp_path / "killed") == reached(undisturbed)
    assert fits(tmp_path / "killed") == fits(undisturbed)


def descends_from(pid: int, ancestor: int) -> bool:
    """Whether ``ancestor`` is among the parents of ``pid``."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(status.rpartition(")")[2].split()[1])
    return False
