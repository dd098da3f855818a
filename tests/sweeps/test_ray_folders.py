"""A private Ray: started ahead and taken over once; where its folders and sockets are, and who removes them."""

import contextlib
import errno
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import ray

from cbs.errors import ConfigError, ResultsError, Unfinished
from sweeps.folder import described, lives
from sweeps.running import scratch
from sweeps.running.child import Child
from sweeps.running.cluster import Engine, EngineLost, PrestartedRay, connected
from sweeps.running.control import end_processes
from sweeps.running.resources import Resources


@pytest.fixture
def asked(monkeypatch) -> list[dict[str, object]]:
    """What Ray was asked for, which then fails."""
    found: list[dict[str, object]] = []

    def no_start(**options):
        found.append(options | {"there": Path(options.get("_temp_dir", "/")).exists()})
        raise RuntimeError("not today")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", no_start)
    return found


def test_a_private_ray_is_our_own_whatever_cluster_the_surroundings_name(monkeypatch, asked):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # as a job of a cluster has it
    with pytest.raises(EngineLost, match="not today"), connected(Resources(workers=1)):
        pytest.fail("nothing was started")
    assert asked[0]["address"] == "local"
    with pytest.raises(ConfigError, match=r"cannot reach Ray at 10\.0\.0\.1:6379"):
        connected(Resources(address="10.0.0.1:6379")).__enter__()
    assert asked[1]["address"] == "10.0.0.1:6379"


def of_a_killed_sweep(parent: Path, **changes: object) -> Path:
    """A folder for temporary files that its owner has left behind."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = parent / f"cbs-ray-{gone.pid}-abcdefgh"
    folder.mkdir()
    (folder / "owner.json").write_text(json.dumps(described() | {"pid": gone.pid} | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({}, False),
        ({"pid": os.getpid(), "born": "1"}, False),  # another process has the number of the dead one
        ({"machine": "another"}, True),  # container or machine, in which the owner may live
        ({"machine": None}, True),
        (None, True),  # it is just being made
    ],
)
def test_a_folder_is_only_removed_where_its_owner_is_dead_for_certain(monkeypatch, tmp_path, changes, stays):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = of_a_killed_sweep(tmp_path, **(changes or {}))
    if changes is None:
        (folder / "owner.json").unlink()
    mine = scratch.temporary_folder()
    scratch.remove_stale_folders()
    assert folder.exists() is stays
    assert mine.exists()
    monkeypatch.setattr(os, "getuid", lambda: -1)  # another user
    again = of_a_killed_sweep(tmp_path)
    scratch.remove_stale_folders()
    assert again.exists()
    scratch.remove_folder(mine)
    assert not mine.parent.exists()


def test_where_the_table_of_processes_is_of_another_namespace_nobody_is_dead_for_certain(monkeypatch):
    dead = {**described(), "born": "1"}
    assert lives(dead) is False
    monkeypatch.setattr(os, "readlink", lambda path: "1234567")
    assert lives(dead) is None
    assert lives(described()) is None


def test_without_any_folder_for_temporary_files_it_is_one_line(monkeypatch):
    def nowhere(*_: object, **__: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    for name in ("gettempdir", "mkdtemp", "TemporaryFile"):
        monkeypatch.setattr(tempfile, name, nowhere)
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ConfigError, match="No usable temporary directory found; set TMPDIR"):
        connected(Resources(workers=1)).__enter__()
    with pytest.raises(ResultsError, match=r"No usable temporary directory found \(set TMPDIR"):
        Child()


@pytest.mark.parametrize(
    ("name", "limit", "words"),
    [
        ("NOFILE", 32, "Ray needs 64 open files (ulimit -n), and this shell allows 32"),
        ("NPROC", 180, "200 processes and threads (ulimit -u), and this shell allows 180"),
        ("AS", 2 * 10**9, "3,000,000,000 bytes of address space"),
        ("AS", resource.RLIM_INFINITY, None),
        ("NPROC", 200, None),
    ],
)
def test_limits_under_which_no_ray_lives_are_told_before_it_starts(monkeypatch, name, limit, words):
    def found(which: int) -> tuple[int, int]:
        return (limit if which == getattr(resource, f"RLIMIT_{name}") else 10**12,) * 2

    monkeypatch.setattr(resource, "getrlimit", found)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(ConfigError, match=re.escape(words)) if words else contextlib.nullcontext():
        Engine(Resources(workers=1)).stop()


def test_sockets_go_where_their_path_is_short_and_what_is_killed_there_is_removed_too(monkeypatch, asked, tmp_path):
    long = tmp_path / ("long" * 20)
    long.mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="s") as name:
        short = Path(name)
        monkeypatch.setattr(scratch, "_SHORT", name)
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        for parent in (long, short):
            of_a_killed_sweep(parent)
        with pytest.raises(EngineLost), connected(Resources(workers=1)):
            pytest.fail("nothing was started")
        assert Path(asked[0]["_temp_dir"]).parents[1] == short
        assert asked[0]["there"]
        longest = f"{asked[0]['_temp_dir']}/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"
        assert len(longest) <= scratch._MOST_SOCKET
        assert [*long.iterdir(), *short.iterdir()] == []
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setattr(scratch, "_SHORT", "/nowhere")
        with pytest.raises(EngineLost), connected(Resources(workers=1)):
            pytest.fail("nothing was started")
        assert Path(asked[1]["_temp_dir"]).parents[1] == short


def test_processes_that_start_others_while_they_are_ended_end_with_them(tmp_path):
    """As Ray's node does, which has just been started; an agent that lives on makes the folder anew."""
    script = tmp_path / "next"
    script.write_text('#!/bin/sh\n[ "$1" -gt 0 ] && "$0" $(($1 - 1)) &\nsleep 61.75 &\nwait\n')
    script.chmod(0o700)

    def alive() -> list[psutil.Process]:
        marks = {str(script), "61.75"}
        return [each for each in psutil.process_iter(["cmdline"]) if marks & {*(each.info["cmdline"] or ())}]

    first = subprocess.Popen([script, "200"])
    try:
        while len(alive()) < 4:
            time.sleep(0.01)
        end_processes(tmp_path)
        assert first.wait(timeout=60) == -signal.SIGKILL
        time.sleep(0.5)
        assert not alive()
    finally:
        for _ in range(9):
            for each in alive():
                each.kill()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("where", [(ray, "init"), (tempfile, "mkdtemp")], ids=["ray", "folder"])
def test_a_ray_that_has_no_room_is_not(monkeypatch, where, number):
    def full(**options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(*where, full)
    room = pytest.raises(Unfinished, match=r"^no room for temporary files in .*; make room, or set TMPDIR")
    with room, connected(Resources(workers=1)):
        pytest.fail("nobody is connected")


class Stand:
    """In the place of Ray: what is done to it."""

    def __init__(self, monkeypatch) -> None:
        self.done: list[str] = []
        self.folders: list[Path] = []
        self.error: Exception | None = None
        self.up = False
        monkeypatch.setattr(ray, "is_initialized", lambda: self.up)
        monkeypatch.setattr(ray, "init", self.init)
        monkeypatch.setattr(ray, "shutdown", self.shutdown)

    def init(self, **options) -> None:
        self.done.append("init")
        self.folders.append(Path(options["_temp_dir"]))
        if self.error is not None:
            raise self.error
        self.up = True

    def shutdown(self) -> None:
        self.done.append("shutdown")
        self.up = False


@pytest.fixture
def stand(monkeypatch) -> Stand:
    return Stand(monkeypatch)


def test_it_is_taken_over_once_and_its_folder_goes_with_it(stand):
    with PrestartedRay(Resources(workers=1)) as ahead:
        with connected(Resources(workers=1), ahead.taken()) as ours:
            assert ours
            assert stand.done == ["init"]
            assert stand.folders[0].exists()
        assert stand.done == ["init", "shutdown"]
        with connected(Resources(workers=1), ahead.taken()) as ours:
            assert ours
        assert stand.done == ["init", "shutdown"] * 2
    assert stand.done == ["init", "shutdown"] * 2
    assert len(set(stand.folders)) == 2
    assert not any(folder.exists() for folder in stand.folders)


def test_where_nobody_takes_it_over_it_is_stopped(stand):
    with pytest.raises(Unfinished, match="something else"), PrestartedRay(Resources(workers=1)):
        raise Unfinished("something else")
    assert stand.done == ["init", "shutdown"]
    assert not stand.folders[0].exists()


def test_a_connection_that_exists_is_left_alone(stand):
    stand.up = True
    with PrestartedRay(Resources(workers=1)) as ahead, connected(Resources(workers=1), ahead.taken()) as ours:
        assert not ours
    assert stand.done == []
    assert stand.up


def test_one_that_does_not_start_is_told_to_who_needs_it_and_the_next_one_is_another(stand):
    stand.error = RuntimeError("the node timed out")
    with PrestartedRay(Resources(workers=1)) as ahead:
        with pytest.raises(EngineLost, match="the node timed out"), connected(Resources(workers=1), ahead.taken()):
            pytest.fail("nobody is connected")
        stand.error = None
        with connected(Resources(workers=1), ahead.taken()) as ours:
            assert ours
    with PrestartedRay(Resources(workers=1)):
        stand.error = RuntimeError("and nobody needs it")
    assert not any(folder.exists() for folder in stand.folders)


def test_one_serves_all_sweeps_of_a_command_until_one_of_them_fails(stand):
    with PrestartedRay() as ahead:
        assert ahead.taken() is None
        for _ in range(2):
            with connected(Resources(workers=1), ahead.taken(), ahead.keep) as ours:
                assert ours
            assert stand.done == ["init"]
        with pytest.raises(KeyError), connected(Resources(workers=1), ahead.taken(), ahead.keep):
            raise KeyError
        assert stand.done == ["init", "shutdown"]
        with connected(Resources(workers=1), ahead.taken(), ahead.keep) as ours:
            assert ours
        assert stand.done == ["init", "shutdown", "init"]
    assert stand.done == ["init", "shutdown"] * 2
    assert not any(folder.exists() for folder in stand.folders)
