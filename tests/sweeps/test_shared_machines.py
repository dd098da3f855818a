"""Sweeps beside others on one machine: other users, containers, disks that fill or turn read-only."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import cli
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.running import access
from tests.sweeps.alone import children_here, without_ray

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


@pytest.mark.slow
def test_temporary_files_that_fill_their_disk_end_the_sweep_in_one_line_and_cost_no_trial(undisturbed, tmp_path):
    small = Path("/mnt")  # Ray's sockets want a short name
    own = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c"]
    mount = f"mount -t tmpfs -o size=16m tmpfs {small}"
    if subprocess.run([*own, mount], check=False, capture_output=True).returncode:
        pytest.skip("this system gives nobody a disk of their own")
    command = [sys.executable, str(ROOT / "cli.py"), *COMMAND, "-o", str(tmp_path / "full")]
    process = subprocess.Popen(
        [*own, f'{mount}; export TMPDIR={small}; exec "$@"', "cbs", *command],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_while_running(process, (tmp_path / "full" / "sweep.lock").exists)
    wait_while_running(process, lambda: descendants(process.pid, RAYLET))
    with pytest.raises(OSError, match="No space left"), open(f"/proc/{process.pid}/root{small}/fill", "wb") as fill:
        fill.write(b"0" * 2**25)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, err
    assert f"cbs: no room for temporary files in {small}; make room" in err
    assert "to continue: cbs sweep" in err
    assert "Traceback" not in err
    assert "LOG ERROR" not in err
    in_this_process(tmp_path / "full")
    assert reached(tmp_path / "full") == reached(undisturbed)


def live_folders(process: subprocess.Popen[str]) -> set[Path]:
    """Temporary folders of a sweep, as its own file system shows them."""
    return {
        path for path in Path(tempfile.gettempdir()).glob("cbs-ray-*") if f'"pid": {process.pid},' in owner_of(path)
    }


def owner_of(folder: Path) -> str:
    try:
        return (folder / "owner.json").read_text()
    except OSError:
        return ""


@pytest.mark.slow
def test_sweeps_in_two_process_namespaces_that_share_tmp_leave_each_other_alone(tmp_path):
    own = namespace("--pid", "--fork", "--mount-proc")
    first = start(tmp_path / "first", workers=1, what=[*COMMAND, "--set", "max_steps=20000", "--lrs", "1e-7,2e-7"])
    try:
        wait_while_running(first, lambda: len(live_folders(first)) >= 2)
        before = live_folders(first)
        assert all(path.stat().st_mode & 0o777 == 0o700 for path in before)
        command = [
            sys.executable,
            str(ROOT / "cli.py"),
            *COMMAND,
            *TWO,
            "--workers",
            "1",
            "-o",
            str(tmp_path / "other"),
        ]
        other = subprocess.run(
            [*own, *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE
        )
        assert other.returncode == 0, other.stderr
        assert first.poll() is None, first.communicate()
        assert live_folders(first) == before
    finally:
        first.send_signal(signal.SIGTERM)
        _, err = first.communicate(timeout=DEADLINE)
    assert first.returncode == 130, err
    assert not live_folders(first)


@pytest.mark.slow
@pytest.mark.parametrize("user", [None, 65534], ids=["same user", "another user"])
def test_who_has_no_token_commands_no_ray_of_ours_and_another_user_sees_no_file(tmp_path, user):
    if user is not None and os.getuid() != 0:
        pytest.skip("only root can be another user")
    process = start(tmp_path / "sweep", workers=1, what=[*COMMAND, "--set", "max_steps=20000", "--lrs", "1e-7"])
    try:
        wait_while_running(process, lambda: descendants(process.pid, RAYLET) and len(live_folders(process)) >= 2)
        (raylet,) = descendants(process.pid, RAYLET)
        words = Path(f"/proc/{raylet}/cmdline").read_text().split("\0")
        (address,) = [word.partition("=")[2] for word in words if word.startswith("--gcs-address=")]
        wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong"}
        for surroundings in {"RAY_AUTH_MODE": "disabled"}, wrong:
            become = f"import os; os.setuid({user})" if user is not None else ""  # who may start no Python of ours
            probe = subprocess.run(
                [sys.executable, "-c", access._PROBE.replace("\ntry:", f"\n{become}\ntry:"), address],
                env={**os.environ, **surroundings}, check=False, capture_output=True,
            )  # fmt: skip
            assert probe.returncode == access._REFUSED, probe.stderr
        for folder in live_folders(process):
            listing = subprocess.run(["ls", folder], check=False, capture_output=True, user=user)
            assert (listing.returncode == 0) is (user is None)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE)


def namespace(*kinds: str) -> list[str]:
    """Beginning of a command in namespaces of its own."""
    own = ["unshare", "--user", "--map-root-user", *kinds]
    if subprocess.run([*own, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system gives nobody a namespace of their own")
    return own


@pytest.mark.slow
def test_a_damaged_trial_in_the_lower_layer_of_a_container_is_set_aside_run_again_and_cleaned(undisturbed, tmp_path):
    own, (lower, upper, work, merged) = namespace("--mount"), (tmp_path / name for name in ("l", "u", "w", "m"))
    for path in (upper, work, merged):
        path.mkdir()
    in_this_process(lower / "sweep")
    damaged = sorted(lower.glob("sweep/trials/*/record.parquet"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-7])
    mount = f"mount -t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={work},userxattr {merged}"
    if subprocess.run([*own, "bash", "-c", mount], check=False, capture_output=True).returncode:
        pytest.skip("this system layers no folders here")
    command = [sys.executable, str(ROOT / "cli.py"), *COMMAND, "--workers", "1", "-o", str(merged / "sweep")]
    clean = f"{' '.join(command[:2])} status {merged}/sweep --clean leftovers"
    done = subprocess.run(
        [*own, "bash", "-c", f'{mount}; "$@" && {clean} && cp -r {merged}/sweep {tmp_path}/out', "cbs", *command],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"kept as {damaged.parent.name}.damaged, the trial runs again" in done.stderr.replace("\n", " ")
    assert f"{damaged.parent.name}.damaged" in done.stdout.replace("\n", "")
    assert not list(tmp_path.glob("out/trials/*.damaged"))
    assert reached(tmp_path / "out") == reached(undisturbed)


@pytest.mark.slow
def test_a_folder_that_becomes_read_only_ends_with_the_command_that_continues(tmp_path):
    folder, own = tmp_path / "sweep", namespace("--mount")
    folder.mkdir()
    command = [sys.executable, str(ROOT / "cli.py"), *COMMAND, "--workers", "1", "-o", str(folder)]
    process = subprocess.Popen(
        [*own, "bash", "-c", f'mount --bind {folder} {folder}; exec "$@"', "cbs", *command],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_while_running(process, lambda: stored(folder) >= 2)
    enter = ["nsenter", "--user", "--mount", "--preserve-credentials", "--target", str(process.pid)]
    closed = [*enter, "mount", "-o", "remount,bind,ro", str(folder)]
    wait_while_running(process, lambda: not subprocess.run(closed, check=False, capture_output=True).returncode)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2, err
    assert "Read-only file system" in err
    assert f"every finished trial is kept in {folder}; to continue: cbs sweep" in err.replace("\n", " ")
    assert "Traceback" not in err
