"""A mirror holds what the folder holds, and another machine goes on from it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cbs.errors import ConfigError, ResultsError
from cbs.trial.store import Store
from sweeps.folder.lock import LOCK
from sweeps.launching import mirror
from sweeps.launching.mirror import OWNER, Mirror
from tests import factories


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = factories.sweep(tmp_path / "here", batch_sizes=(8, 32), lrs=(1e-3, 2e-3), growth=1.3)
    (made.root / "checkpoints").mkdir(exist_ok=True)
    (made.root / "checkpoints" / "running.pt").write_bytes(b"state")
    (made.root / LOCK).write_text("{}")
    return made


@pytest.fixture
def address(tmp_path: Path) -> str:
    return (tmp_path / "there").as_uri()


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def mirrored(address: str, folder: Path) -> list[str]:
    said: list[str] = []
    folder.mkdir(exist_ok=True)
    with Mirror(address, folder, said.append):
        pass
    return said


def test_the_mirror_is_the_folder_without_its_lock(store: Store, address: str, tmp_path: Path) -> None:
    assert mirrored(address, store.root) == []
    here = files(store.root)
    del here[LOCK]
    assert files(tmp_path / "there") == here


def test_another_machine_gets_all_of_it(store: Store, address: str, tmp_path: Path) -> None:
    mirrored(address, store.root)
    mirrored(address, tmp_path / "other")
    here = files(store.root)
    del here[LOCK]
    assert files(tmp_path / "other") == here
    assert [r.trial_id for r in Store(tmp_path / "other").results()] == [r.trial_id for r in store.results()]


def test_what_is_here_stays_and_what_is_missing_comes(store: Store, address: str) -> None:
    mirrored(address, store.root)
    first, second = store.trial_ids()[:2]
    whole = files(store.trials / second)
    shutil.rmtree(store.trials / second)
    (store.trials / first / "timing.json").write_text('{"seconds": 7}')
    mirrored(address, store.root)
    assert files(store.trials / second) == whole
    assert json.loads((store.trials / first / "timing.json").read_text()) == {"seconds": 7}


def test_a_trial_without_its_record_is_not_taken(store: Store, address: str, tmp_path: Path) -> None:
    mirrored(address, store.root)
    half, *others = store.trial_ids()
    (tmp_path / "there" / "trials" / half / "record.parquet").unlink()
    mirrored(address, tmp_path / "other")
    assert Store(tmp_path / "other").trial_ids() == others


def test_it_is_kept_up_to_date_and_a_checkpoint_that_is_over_goes(
    store: Store, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "SECONDS", 0.02)
    there = tmp_path / "there"

    def until(condition: bool | None, path: Path) -> None:
        deadline = time.monotonic() + 30.0
        while path.exists() is not condition and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.exists() is condition

    with Mirror(address, store.root, print):
        until(True, there / "sweep.json")
        (store.root / "plan.jsonl").write_text("{}\n")
        until(True, there / "plan.jsonl")
        (store.root / "checkpoints" / "running.pt").unlink()
        until(False, there / "checkpoints" / "running.pt")
        assert (there / OWNER).exists()
        with pytest.raises(ResultsError, match="belongs to a sweep that is running on"):
            mirrored(address, tmp_path / "other")
    assert not (there / OWNER).exists()


def test_what_was_fetched_is_not_copied_back_and_goes_with_its_trial(
    store: Store, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored(address, store.root)
    (tmp_path / "other").mkdir()
    with Mirror(address, tmp_path / "other", print):
        copied: list[str] = []
        monkeypatch.setattr(mirror.fs, "copy_files", lambda source, target, **_: copied.append(target))
        (tmp_path / "other" / "checkpoints" / "running.pt").unlink()
    assert copied == []
    assert not (tmp_path / "there" / "checkpoints" / "running.pt").exists()
    assert (tmp_path / "there" / "sweep.json").exists()


def test_an_owner_that_is_being_written_is_one(address: str, store: Store, tmp_path: Path) -> None:
    mirrored(address, store.root)
    (tmp_path / "there" / OWNER).write_bytes(b"")
    with pytest.raises(ResultsError, match="belongs to a sweep that is running on a machine without a name"):
        mirrored(address, tmp_path / "other")


def test_an_owner_that_died_is_forgotten(store: Store, address: str, tmp_path: Path) -> None:
    mirrored(address, store.root)
    touch(tmp_path / "there" / OWNER, mirror.STALE_SECONDS + 5)
    assert mirrored(address, tmp_path / "other") == []


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_clocks_of_two_machines_need_not_agree(
    ahead: float, store: Store, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the store counts, which dates what both write."""
    mirrored(address, store.root)
    touch(tmp_path / "there" / OWNER, mirror.STALE_SECONDS - 60)
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() + ahead)
    with pytest.raises(ResultsError, match="belongs to a sweep that is running on spot-1"):
        mirrored(address, tmp_path / "other")
    touch(tmp_path / "there" / OWNER, mirror.STALE_SECONDS + 60)
    assert mirrored(address, tmp_path / "other") == []
    assert not list((tmp_path / "there").glob(".mirror-clock"))


@pytest.mark.parametrize("removed", ["trials", "sweep.json", "."])
def test_a_folder_that_is_removed_is_not_removed_from_its_mirror(
    removed: str, store: Store, address: str, tmp_path: Path
) -> None:
    said: list[str] = []
    with Mirror(address, store.root, said.append) as kept:
        kept._copy()
        before = files(tmp_path / "there")
        gone = store.root / removed
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        (store.root / "checkpoints" / "running.pt").unlink(missing_ok=True)
    after = files(tmp_path / "there")
    assert {name: text for name, text in before.items() if name != OWNER} == after
    assert "checkpoints/running.pt" in after
    assert len(said) == 1
    assert "is gone; the mirror" in said[0]


def touch(path: Path, seconds: float) -> None:
    """As if spot-1 had written it so long ago."""
    path.write_text('{"host": "spot-1"}')
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_another_protocol_is_refused_and_nothing_is_overwritten(store: Store, address: str, tmp_path: Path) -> None:
    mirrored(address, store.root)
    before = files(tmp_path / "there")
    other = factories.sweep(tmp_path / "other", batch_sizes=(8,), prune_factor=2.0)
    with pytest.raises(ResultsError, match="holds a sweep of another protocol"):
        mirrored(address, other.root)
    assert {name: content for name, content in files(tmp_path / "there").items() if name != OWNER} == before


def test_nothing_is_written_through_a_link(store: Store, address: str, tmp_path: Path) -> None:
    mirrored(address, store.root)
    (tmp_path / "other").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "other" / "trials").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultsError, match="symbolic link"):
        mirrored(address, tmp_path / "other")
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_mirror_that_cannot_be_written_is_told_once_and_at_the_end(
    store: Store, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "SECONDS", 0.02)
    said: list[str] = []

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with Mirror(address, store.root, said.append):
        monkeypatch.setattr(mirror.fs, "copy_files", full)
        (store.root / "plan.jsonl").write_text("{}\n")
        deadline = time.monotonic() + 30.0
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
    assert len(said) == 2
    assert "cannot be written: No space left on device; trying again" in said[0]
    assert "is not complete" in said[1]


@pytest.mark.parametrize("address", ["there", "ftp://there/x"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ResultsError), match="mirror"):
        mirrored(address, tmp_path / "here")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that speaks S3, with a bucket."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("moto.server", exc_type=ImportError)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")
        deadline = time.monotonic() + 60.0
        while True:
            try:
                client.create_bucket(Bucket="sweeps")
                break
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        yield f"s3://sweeps/quick?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_a_store_of_objects_holds_it_as_well(bucket: str, store: Store, tmp_path: Path) -> None:
    (store.root / "checkpoints" / "large.pt").write_bytes(os.urandom(12 * 2**20))  # several parts
    assert mirrored(bucket, store.root) == []
    assert mirrored(bucket, tmp_path / "other") == []
    here = files(store.root)
    del here[LOCK]
    assert files(tmp_path / "other") == here
    with Mirror(bucket, store.root, print), pytest.raises(ResultsError, match="belongs to a sweep that is running"):
        mirrored(bucket, tmp_path / "third")


@pytest.mark.parametrize("owner", ["{}", "[]", '{"beat": {}}'])
def test_an_owner_without_a_name_is_one(owner: str, store: Store, address: str, tmp_path: Path) -> None:
    mirrored(address, store.root)
    (tmp_path / "there" / OWNER).write_text(owner)
    with pytest.raises(ResultsError, match="running on a machine without a name; wait for it"):
        mirrored(address, tmp_path / "other")
