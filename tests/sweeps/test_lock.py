"""One owner per folder: a living one is named, a dead one gives way."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cbs.errors import ResultsError
from cbs.trial.store import Store
from sweeps.folder.lock import LOCK, STALE_SECONDS, Lock, check_free, described, owner
from sweeps.launching import loop
from sweeps.outlook.cost import Cost
from sweeps.running import tuning
from sweeps.running.resources import Resources
from sweeps.running.run import Runs
from tests.sweeps.alone import children_here, swept
from tests.sweeps.simulation import small_sweep


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
        assert runs.run is not None
        shutil.rmtree(runs.run.store.root)
        runs.run.look_around()

    monkeypatch.setattr(tuning, "run_search", removed)
    with pytest.raises(ResultsError, match=r"sweep\.lock is gone: .*; to start over: cbs sweep$"):
        swept(small_sweep(), tmp_path / "sweep", command="cbs sweep")
    assert not (tmp_path / "sweep").exists()
