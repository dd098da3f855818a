"""``cbs merge``: what is one sweep in two folders becomes one in one, or is refused with what is unlike."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.questions.analyze.critical_batch_sizes import analyze
from cbs.errors import ConfigError, ResultsError
from cbs.trial.record import TrialResult, TrialStatus
from cbs.trial.store import Store, find_sweeps
from extensions.merge import merging
from extensions.merge.merging import merge
from sweeps.folder.lock import Lock
from sweeps.folder.manifest import merged_manifest
from sweeps.launching.ledger import ledger
from sweeps.launching.policies.rounds import ROUNDS
from sweeps.outlook.report import PLAN, reasons, write_reasons
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep
from tests.sweeps.simulation import run_search, simulate, small_sweep

SWEEP = small_sweep(optimizers=small_sweep().axes.optimizers[:1])


def stepped(result: TrialResult) -> TrialResult:
    count = result.final_step
    losses = np.random.default_rng(count).random(count)
    return result.replace(steps={"step": np.arange(1, count + 1), "train_loss": losses}, timing={"host": "x"})


def folder(root: Path, results: Iterable[TrialResult], sweep: Sweep = SWEEP) -> Store:
    store = Store(root)
    store.prepare()
    store.write_manifest(merged_manifest(store, sweep, f"cbs sweep -o {root}"))
    for result in results:
        store.save(stepped(result))
    return store


@pytest.fixture(scope="module")
def whole() -> list[TrialResult]:
    """A sweep, settled."""
    return list(run_search(Search(SWEEP)).values())


def numbers(path: Path) -> object:
    found = analyze(path, AnalysisConfig(resamples=100)).to_json()
    found["fits"] = [fit | {"sweep": ""} for fit in found["fits"]]
    return json.loads(json.dumps(found, default=str))


def test_two_halves_are_the_whole(tmp_path: Path, whole: list[TrialResult]) -> None:
    folder(tmp_path / "all", whole)
    two = [folder(tmp_path / "a", whole[::2]), folder(tmp_path / "b", [*whole[1::2], whole[0]])]
    write_reasons(reasons(Search(SWEEP, whole[::2])), tmp_path / "a")
    rounds = [{"asked": {"precision": 0.1}, "rounds": []}]
    (tmp_path / "b" / ROUNDS).write_text(json.dumps(rounds))
    (tmp_path / "b" / "spectrum.parquet").touch()
    done = merge([store.root for store in two], tmp_path / "c", "cbs merge")
    assert (done.trials, done.duplicates, done.pruned) == (len(whole), 1, 0)
    assert sum(done.taken.values()) == len(whole)
    assert done.notes == [f"{tmp_path / 'b' / 'spectrum.parquet'} is not merged"]
    for name in Store(tmp_path / "all").trial_ids():
        for file in ("record.parquet", "steps.parquet", "timing.json"):
            parts = [(tmp_path / of / "trials" / name / file).read_bytes() for of in ("all", "c")]
            assert parts[0] == parts[1]
    assert numbers(tmp_path / "c") == numbers(tmp_path / "all")
    assert json.loads((tmp_path / "c" / ROUNDS).read_text()) == rounds
    statuses = [json.loads(line)["status"] for line in (tmp_path / "c" / PLAN).read_text().splitlines()]
    assert statuses
    assert None in [json.loads(line)["status"] for line in (tmp_path / "a" / PLAN).read_text().splitlines()]
    # a sweep goes on there: nothing is lost, nothing is missing
    store = Store(tmp_path / "c")
    assert Search(SWEEP, store.sound_results(pytest.fail)).done
    assert len(merged_manifest(store, SWEEP, "again")["runs"]) == 4
    assert ledger(store).command is None


def test_the_bound_of_the_other_folder_prunes(tmp_path: Path) -> None:
    """As a sweep does at its end, whichever of the two trials was where."""
    search = Search(SWEEP)
    cell = search.cells()[0]
    slow, fast = (simulate(search.config(cell, lr), None, None) for lr in (1e-3, 4e-3))
    assert slow.final_step > 1.4 * fast.final_step
    stores = [folder(tmp_path / name, [result]).root for name, result in (("a", slow), ("b", fast))]
    assert merge(stores, tmp_path / "c").pruned == 1
    assert Store(tmp_path / "c").load(slow.trial_id).status is TrialStatus.PRUNED
    assert Store(tmp_path / "a").load(slow.trial_id).status is TrialStatus.REACHED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.replace(steps=r.steps | {"train_loss": r.steps["train_loss"] + 1e-15}), "train_loss of its steps"),
        (lambda r: r.replace(evaluations=r.evaluations[:-1]), "how it ended"),
        (lambda r: r.replace(steps_to_target=r.steps_to_target * (1 + 1e-15)), "steps_to_target"),
        (lambda r: r.replace(steps={"step": r.steps["step"]}), "what was recorded"),
        (lambda r: r.replace(stated={"warmup_steps": 3}), "the settings that its program reported"),
        (lambda r: r.replace(timing={"host": "y", "seconds": 3}, message="other"), None),
    ],
)
def test_a_trial_has_one_result(
    tmp_path: Path, whole: list[TrialResult], change: Callable[[TrialResult], TrialResult], said: str | None
) -> None:
    mine = next(result for result in whole if result.status is TrialStatus.REACHED)
    stores = [folder(tmp_path / "a", [*whole[:1], mine]), folder(tmp_path / "b", [])]
    stores[1].save(change(stepped(mine)))
    if said is None:
        assert merge([store.root for store in stores], tmp_path / "c").duplicates == 1
        return
    with pytest.raises(ResultsError, match=f"{mine.trial_id} differs between .*a and .*b in {said}"):
        merge([store.root for store in stores], tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_failed_and_damaged_trials_and_checkpoints(tmp_path: Path, whole: list[TrialResult]) -> None:
    failed, damaged, gone, open_ = (result.trial_id for result in whole[:4])
    one = folder(tmp_path / "a", [whole[0].replace(status=TrialStatus.FAILED, steps_to_target=None), *whole[1:3]])
    other = folder(tmp_path / "b", whole[:2])
    (one.trials / damaged / "record.parquet").write_bytes(b"")
    (one.trials / gone / "steps.parquet").write_bytes(b"")
    for store, age, names in ((one, 100, (failed, open_)), (other, 200, (open_,))):
        (store.root / "checkpoints").mkdir(exist_ok=True)
        for name in names:
            path = store.root / "checkpoints" / f"{name}.pt"
            path.write_text(str(age))
            os.utime(path, (age, age))
    for name in (failed, open_):
        (one.root / "runs" / name).mkdir(parents=True)
        (one.root / "runs" / name / "output.log").write_text(name)
    done = merge([one.root, other.root], tmp_path / "c")
    merged = Store(tmp_path / "c")
    assert merged.trial_ids() == sorted([failed, damaged])
    assert merged.load(failed).status.final
    assert [path.read_text() for path in merged.root.glob("runs/*/output.log")] == [open_]
    assert len(done.notes) == 3
    assert any(gone in note for note in done.notes)
    assert [path.read_text() for path in (merged.root / "checkpoints").iterdir()] == ["200"]


def test_unlike_protocols_are_refused_with_the_field(tmp_path: Path) -> None:
    stores = [folder(tmp_path / "a", []), folder(tmp_path / "b", [], SWEEP.replace(max_steps=7))]
    with pytest.raises(ResultsError, match="max_steps = 2000 in the first, 7 in the second"):
        merge([store.root for store in stores], tmp_path / "c")
    manifest = stores[0].manifest() | {"data_hash": "other"}
    manifest.pop("schema_version")
    third = folder(tmp_path / "d", [])
    third.write_manifest(manifest)
    with pytest.raises(ResultsError, match="data_hash = None in the first, other in the second"):
        merge([stores[0].root, third.root], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_running_sweep_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = [folder(tmp_path / "a", []), folder(tmp_path / "b", [])]
    with Lock(stores[1], "cbs sweep"), pytest.raises(ResultsError, match="b belongs to a sweep that is running"):
        merge([store.root for store in stores], tmp_path / "c")
    held = Lock(stores[0], "cbs sweep")  # one that begins while the merge is at work
    monkeypatch.setattr(merging, "_write_rounds", lambda *parts: held.__enter__())
    with pytest.raises(ResultsError, match="a belongs to a sweep that is running"):
        merge([store.root for store in stores], tmp_path / "c")
    held.__exit__(None, None, None)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("sources", "output", "said"),
    [
        (["a"], "c", "two folders or more"),
        (["a", "a"], "c", "given twice"),
        (["a", "b"], "a/c", "must lie outside"),
        (["a", "b"], ".", "must lie outside"),
        (["a", "b"], "full", "already exists"),
        (["a", "missing"], "c", "missing is not a sweep"),
        (["a", "."], "c", "outside|folder of sweeps"),
        (["a", "imported"], "c", "cbs import --add"),
    ],
)
def test_what_cannot_be_merged(tmp_path: Path, sources: list[str], output: str, said: str) -> None:
    for name in ("a", "b", "imported"):
        folder(tmp_path / name, [])
    manifest = Store(tmp_path / "imported").manifest()
    manifest.pop("schema_version")
    Store(tmp_path / "imported").write_manifest(manifest | {"imported": [{}]})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises((ConfigError, ResultsError), match=said):
        merge([tmp_path / source for source in sources], tmp_path / output)


def test_a_merge_that_is_killed_leaves_no_folder(
    tmp_path: Path, whole: list[TrialResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [folder(tmp_path / "r" / "a", whole[:3]), folder(tmp_path / "r" / "b", whole[3:5])]
    monkeypatch.setattr(merging, "_checkpoints", lambda *parts: os._exit(9))
    child = os.fork()
    if child == 0:
        merge([store.root for store in stores], tmp_path / "r" / "c")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not (tmp_path / "r" / "c").exists()
    assert [store.root.name for store in find_sweeps(tmp_path / "r")] == ["a", "b"]
