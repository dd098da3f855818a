"""Sweeps beside others: one owner per folder, other users, containers, disks that fill or turn read-only."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from cbs.errors import ResultsError
from cbs.trial.store import Store
from sweeps.folder import described
from sweeps.folder.lock import LOCK, STALE_SECONDS, Lock, check_free, owner
from sweeps.launching import loop
from sweeps.outlook.cost import Cost
from sweeps.running import access, tuning
from sweeps.running.resources import Resources
from sweeps.running.run import Runs
from tests.sweeps.alone import children_here, swept
from tests.sweeps.simulation import small_sweep
from tests.sweeps.test_kill import (
    COMMAND,
    DEADLINE,
    RAYLET,
    ROOT,
    TWO,
    descendants,
    in_this_process,
    reached,
    start,
    stored,
    undisturbed,
    wait_while_running,
)

__all__ = ["undisturbed"]


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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "sweep")
    found.prepare()
    return found


def there(store: Store, **changes: object) -> None:
    """A lock with other content."""
    with Lock(store, "cbs sweep"):
        content = json.loads((store.root / LOCK).read_text())
    (store.root / LOCK).write_text(json.dumps(content | changes))


def test_a_second_sweep_is_refused_and_the_owner_named(store):
    with Lock(store, "cbs sweep --optim merit") as lock:
        with pytest.raises(ResultsError, match=rf"process {os.getpid()} on .*--optim merit.*--output"):
            Lock(store, "another").__enter__()
        lock.beat({"done": 1})
        found = owner(store.root)
        assert found.alive
        assert found.content["progress"] == {"done": 1}
    assert owner(store.root) is None
    assert not list(store.root.glob(".tmp-*"))


@pytest.mark.parametrize("below", [".", "width-16"])
def test_a_folder_in_use_is_refused_before_any_step_is_timed_but_may_be_looked_at(store, below, monkeypatch, run):
    timings: list[object] = []
    monkeypatch.setattr(loop, "timed_apart", lambda *asked: timings.append(asked) or Cost())
    inner = Store(store.root / below)
    inner.prepare()
    asked = ["sweep", "--workload", "noisy_quadratic", "--optim", "sgd", "--batch-sizes", "4..8", "-o", store.root]
    children_here(monkeypatch)
    with Lock(inner, "cbs sweep --optim merit"):
        code, _, err = run(*asked)
        assert (code, timings) == (2, [])
        assert f"process {os.getpid()} on " in err
        code, _, err = run(*asked, "--dry-run")
        assert (code, len(timings)) == (0, 1), err
    check_free(store.root)


def test_the_lock_of_a_killed_process_is_taken_at_once(store):
    holder = subprocess.Popen(["sleep", "100"])
    there(store, **described(holder.pid))
    with pytest.raises(ResultsError, match=f"process {holder.pid}"):
        Lock(store, "mine").__enter__()
    holder.kill()
    holder.wait()
    assert not owner(store.root).alive
    with Lock(store, "mine"):
        assert owner(store.root).content["command"] == "mine"


def test_a_number_that_another_process_has_now_is_not_the_owner(store):
    there(store, born="1")
    assert not owner(store.root).alive


@pytest.mark.parametrize(("seconds", "alive"), [(0.0, True), (STALE_SECONDS - 5, True), (STALE_SECONDS + 5, False)])
def test_on_another_machine_only_the_last_touch_counts(store, seconds, alive):
    there(store, machine="another", host="elsewhere")
    then = time.time() - seconds
    os.utime(store.root / LOCK, (then, then))
    assert owner(store.root).alive is alive
    if alive:
        with pytest.raises(ResultsError, match="on elsewhere"):
            Lock(store, "mine").__enter__()
    else:
        with Lock(store, "mine"):
            pass


@pytest.mark.parametrize("content", [None, "", "[1]", '{"pid": "x", "started": 1e999, "progress": []}'])
def test_a_lock_that_says_nothing_counts_until_it_is_old(store, content):
    if content is None:
        os.mkfifo(store.root / LOCK)
    else:
        (store.root / LOCK).write_text(content)
    with pytest.raises(ResultsError, match="unknown"):
        Lock(store, "mine").__enter__()
    os.utime(store.root / LOCK, (0, 0))
    with Lock(store, "mine"):
        pass


def test_an_owner_whose_folder_was_removed_stops_and_does_not_make_it_anew(store):
    with Lock(store, "slow") as slow:
        slow.beat({})
        shutil.rmtree(store.root)
        with pytest.raises(ResultsError, match=r"sweep\.lock is gone: it, or its folder, was removed"):
            slow.beat({})
    assert not store.root.exists()


def test_an_owner_that_lost_its_folder_stops_and_leaves_the_other_alone(store):
    with Lock(store, "slow") as slow:
        (store.root / LOCK).unlink()
        there(store)
        with pytest.raises(ResultsError, match="taken over"):
            slow.beat({})
    assert owner(store.root) is not None


def test_a_folder_that_is_removed_ends_the_sweep_and_stays_removed(tmp_path, monkeypatch):
    def removed(runs: Runs[Any], resources: Resources, ahead: object) -> None:
        shutil.rmtree(runs.run.store.root)
        runs.run.look_around()

    monkeypatch.setattr(tuning, "run_search", removed)
    with pytest.raises(ResultsError, match=r"sweep\.lock is gone: .*; to start over: cbs sweep$"):
        swept(small_sweep(), tmp_path / "sweep", command="cbs sweep")
    assert not (tmp_path / "sweep").exists()
