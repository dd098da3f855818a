"""What ``sweep.json`` says of the software that ran, and what ``cbs status`` says and removes."""

import json
import os
import re
import sys
import types
from pathlib import Path

import pytest

from cbs.errors import ResultsError
from cbs.trial.config import Choice
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.folder.lock import LOCK, Lock
from sweeps.folder.manifest import all_code_changes, merged_manifest, own_code
from sweeps.launching.ledger import clean, ledger, ledgers
from sweeps.spec.spec import Sweep
from tests.factories import sweep
from tests.sweeps import test_own_code
from tests.sweeps.simulation import small_sweep


def prepared(tmp_path: Path, sweep: Sweep) -> Store:
    store = Store(tmp_path)
    store.prepare()
    store.write_manifest(merged_manifest(store, sweep, "first"))
    return store


def test_a_folder_with_trials_on_other_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepared(tmp_path, small_sweep())
    monkeypatch.setattr("cbs.workloads.noisy_quadratic.NoisyQuadraticWorkload.data_hash", "0123456789abcdef")
    with pytest.raises(ResultsError, match=r"holds trials on different data \(hash \S+, now 0123456789abcdef"):
        merged_manifest(store, small_sweep(), "second")


def test_a_change_of_code_is_told_and_the_trials_before_it_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "mine.py"
    module.write_text("one")
    monkeypatch.setitem(sys.modules, "mine", types.SimpleNamespace(__file__=str(module)))
    asked = small_sweep(optimizers=(Choice(name="mine:made"),))
    store = prepared(tmp_path / "results", asked)
    assert "code_changes" not in merged_manifest(store, asked, "second")["runs"][-1]
    (store.trials / "earlier").mkdir()
    module.write_text("other")
    monkeypatch.setattr("sweeps.folder.manifest._versions", lambda: {"torch": "0.1", "ray": "0.1"})
    run = merged_manifest(store, asked, "second")["runs"][-1]
    torch_change, own = run["code_changes"]
    assert re.fullmatch(r"torch \S+, then 0.1", torch_change)
    assert re.fullmatch(r"mine [0-9a-f]{16}, then [0-9a-f]{16}", own)
    assert run["earlier_trials"] == ["earlier"]
    assert all_code_changes(store) == []
    manifest = merged_manifest(store, asked, "second")
    store.write_manifest(manifest)
    assert all_code_changes(store) == [torch_change, own]


def test_other_data_of_a_workload_that_does_not_identify_them_is_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = small_sweep(workload=Choice(name=f"{test_own_code.__name__}:Line"))
    key = f"first examples of {sweep.trial.workload.name}"
    before = own_code(sweep)
    assert own_code(sweep) == before
    monkeypatch.setattr(test_own_code.Line, "training_stream", test_own_code.OneOrder.training_stream)
    assert own_code(sweep)[key] != before[key]
    monkeypatch.setattr(test_own_code.Line, "data_hash", "0123456789abcdef")
    assert list(own_code(sweep)) == [test_own_code.__name__]
    assert own_code(small_sweep()) == {}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Nine trials: one failed, one damaged, with a checkpoint each and one of a trial that never ended."""
    found = sweep(tmp_path / "results" / "one", batch_sizes=(4, 16, 64), lrs=(1e-3, 2e-3, 4e-3))
    ids = found.trial_ids()
    failed = found.load(ids[0]).replace(status=TrialStatus.FAILED, steps_to_target=None, message="no\nluck")
    found.update_record(failed)
    (found.trials / ids[1] / "record.parquet").write_bytes(b"")
    (found.trials / "old.damaged").mkdir()
    (found.trials / ".tmp-half").mkdir()
    (found.root / "checkpoints").mkdir()
    for name in (ids[0], ids[1], ids[2], "never-ended"):
        (found.root / "checkpoints" / f"{name}.pt").touch()
    found.write_manifest(found.manifest() | {"runs": [{"command": "cbs sweep --optim x"}]})
    return found


def content(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_an_idle_folder(store):
    (found,) = ledgers(store.root.parent)
    ids = store.trial_ids()
    assert found.state == "idle"
    assert sum(found.statuses.values()) == 8
    assert found.failed == {ids[0]: "no luck"}
    assert found.checkpoints == sorted([ids[0], ids[1], "never-ended"])
    assert [ids[1] in problem for problem in found.problems] == [True]
    assert "  to continue: cbs sweep --optim x" in found.lines()
    assert json.loads(json.dumps(found.to_json()))["statuses"]["FAILED"] == 1


def test_a_running_sweep_says_where_its_trials_are(store):
    with Lock(store, "cbs sweep") as lock:
        at = {"step": 12, "value": 2.5, "host": "far", "time": 1.0}
        lock.beat({"done": 3, "planned": 9, "running": {"a": at, "b": {}}})
        found = ledger(store)
        assert (found.state, found.done, found.planned) == ("running", 3, 9)
        assert found.owner["pid"] == str(os.getpid())
        text = "\n".join(found.lines())
        assert "3 of 9 planned trials done" in text
        assert "a: step 12: 2.5 on far" in text
        assert "b: starting" in text
        assert found.left_over == []
    assert ledger(store).state == "idle"


def test_clean_removes_what_nobody_needs_and_nothing_else(store, run):
    ids, before = store.trial_ids(), content(store.root)
    code, out, _ = run("status", store.root.parent, "--clean", "leftovers")
    assert code == 0
    gone = {f"checkpoints/{ids[2]}.pt", "trials/old.damaged", "trials/.tmp-half"}
    assert before - content(store.root) == gone
    assert set(out.split()) == {str(store.root / name) for name in gone}
    assert run("status", store.root, "--clean", "leftovers")[1] == "nothing to remove\n"
    run("status", store.root, "--clean", "failed")
    assert ids[0] not in store.trial_ids()


def test_clean_takes_the_lock_of_the_dead_and_leaves_the_living_alone(store, run):
    with Lock(store, "cbs sweep"):
        code, _, err = run("status", store.root, "--clean", "leftovers")
        assert (code, "running" in err) == (2, True)
        said = json.loads((store.root / LOCK).read_text())
    (store.root / LOCK).write_text(json.dumps(said | {"born": "1"}))
    assert ledger(store).state == "killed"
    assert store.root / LOCK in clean(store.root)
    assert ledger(store).state == "idle"
