"""A sweep that is killed and run again ends like one that was left alone. Real processes, real SIGKILL."""

import contextlib
import functools
import json
import os
import random
import re
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
from cbs import interrupts
from cbs.training.run import run_trial
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.folder.manifest import BOUNDS
from sweeps.running import tuning
from sweeps.running.scratch import remove_stale_folders
from tests import fresh
from tests.sweeps import faulty
from tests.sweeps.alone import children_here, one_after_the_other, without_ray
from tests.sweeps.test_ray_folders import of_a_killed_sweep

ROOT = Path(__file__).resolve().parents[2]
# Some 30 trials of a tenth of a second each: enough that a kill comes in the middle.
SETTINGS = ["workload.dimension=100", "max_steps=500", "max_examples=2000"]
AXES = ["--optim", "sgd", "--batch-sizes", "4..32", "--seeds", "2", "--target", "0.4"]
TWO = ["--batch-sizes", "8,16", "--set", "probe=none"]  # What a killed sweep leaves behind is seen in two of them, too
COMMAND = ["sweep", "--workload", "noisy_quadratic", *AXES, *(part for s in SETTINGS for part in ("--set", s))]
DEADLINE = 600.0
# A raylet that is gone refuses the connection at once; one that is slow, on a busy machine, has its ten seconds.
WORKER, TRIAL, RAYLET = "Trainable", "from sweeps.running.child import main", "raylet/raylet "
QUICK = {"period_ms": "1000", "timeout_ms": "10000", "initial_delay_ms": "0", "failure_threshold": "3"}
HEALTH = {f"RAY_health_check_{name}": value for name, value in QUICK.items()}


def start(
    folder: Path, workers: int = 2, more: Sequence[str] = (), what: Sequence[str] = COMMAND
) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "cli.py"), *what, "--workers", str(workers), "-o", str(folder), *more]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **HEALTH}
    )


def stored(folder: Path) -> int:
    return len(list(folder.glob("trials/*/record.parquet")))


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def wait_while_running(process: subprocess.Popen[str], condition) -> None:
    """Wait for something that a sweep does; fails with what it said if it has ended before."""
    wait_for(lambda: process.poll() is not None or condition(), "the sweep does not get on")
    assert process.poll() is None, process.communicate()


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


def in_this_process(folder: Path, what: Sequence[str] = COMMAND) -> Path:
    """The same command without Ray or a child that times its steps."""
    with without_ray(), pytest.MonkeyPatch.context() as patch:
        children_here(patch)
        patch.setattr(sys, "argv", ["cbs", *what, "-o", str(folder)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert stop.value.code == 0
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    return in_this_process(tmp_path_factory.mktemp("kill") / "undisturbed")


def kill_driver(folder: Path, after: int) -> int:
    """Start the sweep, SIGKILL its main process once ``after`` more trials are stored, wait for its Ray to go."""
    source = f"import os; os.environ.update({HEALTH}); import cli; cli.main()"
    process = fresh.begun(source, ROOT, *COMMAND, *TWO, "--workers", "1", "-o", str(folder))
    wait_for(lambda: not process.is_alive() or stored(folder) >= after, "no trial finished")
    assert process.is_alive(), "the sweep ended before it could be killed"
    process.kill()
    process.join()
    assert process.pid is not None
    gone(process.pid)
    return process.pid


def end(process: subprocess.Popen[str]) -> None:
    """SIGKILL the main process of a sweep, and wait for its Ray to go."""
    process.kill()
    process.communicate()
    gone(process.pid)


def gone(pid: int) -> None:
    """Wait for the Ray of a process that was killed to go."""
    wait_for(lambda: not processes_of(pid), "processes of a killed sweep stay behind")


def test_a_killed_sweep_leaves_nothing_behind_and_continues(tmp_path):
    pid = kill_driver(tmp_path / "killed", after=2)
    killed, whole = (in_this_process(tmp_path / name, [*COMMAND, *TWO]) for name in ("killed", "whole"))
    assert reached(killed) == reached(whole)
    remove_stale_folders()
    assert not list(Path(tempfile.gettempdir()).glob(f"cbs-ray-{pid}-*"))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [RAYLET, "gcs_server"])
def test_a_killed_part_of_ray_is_replaced_and_nobody_else_notices(tmp_path, killed):
    acts = "workload.acts=" + json.dumps({"8": "slow", "16": "slow"})
    trials = ["--batch-sizes", "8,16", "--lrs", "0.1", "--seeds", "1", "--target", "0.4", "--set", "max_steps=300"]
    what = ["sweep", "--workload", "tests.sweeps.faulty:workload", "--optim", "sgd", *trials, "--set", acts]
    folder = tmp_path / "raylet"
    process = start(folder, more=["--json"], what=what)
    lock = folder / "sweep.lock"
    wait_while_running(process, lambda: lock.exists() and '"step"' in lock.read_text())
    (mine,) = descendants(process.pid, killed)
    os.kill(mine, signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    assert json.loads(out)["statuses"] == {"REACHED": 2}
    assert "Ray has died; it is started again" in err
    assert "Traceback" not in err
    for result in Store(folder).results():
        assert str(result.evaluations) == str(run_trial(result.config).evaluations)
    wait_for(lambda: not processes_of(process.pid), "processes stay behind")
    assert not list(Path(tempfile.gettempdir()).glob(f"cbs-ray-{process.pid}-*"))


def test_a_stop_of_a_job_scheduler_is_one_line_and_keeps_what_is_finished(tmp_path, capsys, monkeypatch):
    """Without Ray, in this process, which sends SIGTERM to itself after two trials."""

    def signalled(runs, *others):
        save, count = runs.run.store.save, iter(range(2))

        def saving(result):
            save(result)
            if next(count, None) == 1:
                assert signal.getsignal(signal.SIGTERM) is interrupts.interrupt
                signal.raise_signal(signal.SIGTERM)

        runs.run.store.save = saving
        one_after_the_other(runs, *others)

    monkeypatch.setattr(tuning, "run_search", signalled)
    children_here(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["cbs", *COMMAND, "-o", str(tmp_path / "interrupted")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    err = capsys.readouterr().err
    assert stop.value.code == 130
    assert "to continue: cbs sweep" in err
    assert "Traceback" not in err
    assert stored(tmp_path / "interrupted") == 2


SENT = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(12))
def test_an_interrupt_at_any_moment_is_one_line_and_leaves_nothing(tmp_path, moment):
    """From the first import on, through the start of Ray and the first trials; every other one comes twice."""
    chance, mark = random.Random(moment), f"CBS_TEST_MARK={tmp_path}"
    stale = of_a_killed_sweep(Path(tempfile.gettempdir()))
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "cli.py"), *COMMAND, "--workers", "1", "-o", str(tmp_path / "sweep")], cwd=ROOT,
        stderr=subprocess.PIPE, text=True, env=os.environ | dict([mark.split("=", 1)]),
        preexec_fn=lambda: [signal.signal(one, signal.SIG_DFL) for one in SENT],  # as nohup, or &, ignores some
    )  # fmt: skip
    wait_for(lambda: "cli.py" in Path(f"/proc/{process.pid}/cmdline").read_text(), "it does not start")
    time.sleep(0.15 + 10.0 * (moment + chance.random()) / 12)
    for _ in range(1 + moment % 2):
        process.send_signal(SENT[moment // 2 % len(SENT)])
        time.sleep(chance.random() / 2)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert re.fullmatch(r"(\d+ trials? done, .*\n)*cbs: stopped; .*: cbs sweep .*\n", err), err
    wait_for(lambda: not surrounded_by(mark), "processes stay behind")
    assert not list(Path(tempfile.gettempdir()).glob(f"cbs-ray-{process.pid}-*"))
    remove_stale_folders()
    assert not stale.exists()


def surrounded_by(variable: str) -> list[int]:
    """Processes that have inherited an environment variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


KILLS = {"driver": 4, "worker": 4, "trial": 4, "raylet": 3, "bounds": 5}
SIZES = (8, 16, 32, 64)
LONG = [
    "sweep", "--workload", "tests.sweeps.faulty:workload", "--optim", "sgd", "--batch-sizes", "8..64", "--seeds", "5",
    "--target", "0.4", "--set", "max_steps=500", "--set", "max_examples=2000",
    "--set", "workload.acts=" + json.dumps({str(size): "slow" for size in SIZES}), "--set", "workload.until=40",
]  # fmt: skip


@pytest.mark.slow
def test_twenty_kills_at_random_moments_of_one_sweep(tmp_path, monkeypatch):
    chance, killed = random.Random(0), tmp_path / "killed"
    kinds = [kind for kind, count in KILLS.items() for _ in range(count)]
    chance.shuffle(kinds)
    assert len(kinds) == 20
    process = start(killed, what=LONG)
    for kind in kinds:
        before = stored(killed)
        wait_while_running(process, lambda n=before: stored(killed) > n)
        time.sleep(chance.random())
        if kind == "bounds":
            spoil(killed / BOUNDS, chance)
        elif kind == "driver":
            end(process)
            process = start(killed, what=LONG)
        else:
            wait_while_running(process, functools.partial(kill_one, process.pid, kind, chance))
    out, err = process.communicate(timeout=DEADLINE)
    assert "Traceback" not in err
    if process.returncode == 1:  # a trial was hit three times; the same command runs it again
        assert "killed by SIGKILL" in out + err
        process = start(killed, what=LONG)
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, out + err
    monkeypatch.setitem(faulty.ACTS, "slow", lambda found: found)
    undisturbed = in_this_process(tmp_path / "undisturbed", LONG)
    assert reached(killed) == reached(undisturbed)
    assert fits(killed) == fits(undisturbed)
    assert not (killed / BOUNDS).exists()


def kill_one(ancestor: int, kind: str, chance: random.Random) -> bool:
    """Kill a process of a sweep, if there is one of this kind."""
    found = descendants(ancestor, RAYLET if kind == "raylet" else WORKER)
    if kind == "trial":  # another process of the same name times the first steps
        found = [trial for worker in found for trial in descendants(worker, TRIAL)]
    if not found:
        return False
    try:
        os.kill(chance.choice(found), signal.SIGKILL)
    except ProcessLookupError:  # it has just ended
        return False
    return True


def spoil(path: Path, chance: random.Random) -> None:
    """Delete a file, or leave in it what no sweep has written."""
    content = chance.choice([None, b"", b"[1]", b'{"a', b"\xff\xfe", b"[" * 100_000])
    path.unlink(missing_ok=True) if content is None else path.write_bytes(content)


def descendants(ancestor: int, line: str) -> list[int]:
    """Processes below ``ancestor`` whose command line holds ``line``, by their numbers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if line in words and descends_from(int(path.parent.name), ancestor):
            found.append(int(path.parent.name))
    return sorted(found)


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
