"""Sweeps beside others on one machine: other users, containers, disks that fill or turn read-only."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sweeps.running import access
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
