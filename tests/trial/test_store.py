"""The results tree: lossless, repeatable to the byte, never half-written, never mistaken for something else."""

import dataclasses
import errno
import json
import math
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cbs.errors import ResultsError
from cbs.files import set_aside
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.trial.record import SCHEMA_VERSION, GeometryColumns, Measurement, TrialResult, TrialStatus, WorkloadInfo
from cbs.trial.store import Store, find_sweeps
from cbs.trial.trial_files import METADATA_KEY
from tests.factories import quadratic

CONFIG = quadratic("sgd", {"dimension": 20}, target=0.3, lr=0.05, batch_size=4, seed=0, max_steps=30)


def result_of(status: TrialStatus = TrialStatus.REACHED, **changes: object) -> TrialResult:
    result = TrialResult(
        config=CONFIG,
        status=status,
        steps_to_target=17.25,
        evaluations=[
            Measurement(step=0, examples=0, value=1.5, train_loss=math.nan, lr=0.0),
            Measurement(step=20, examples=80, value=-math.inf, train_loss=0.1 + 0.2, lr=0.05),
        ],
        steps={
            "step": np.arange(1, 4, dtype=np.int64),
            "examples": np.arange(4, 16, 4, dtype=np.int64),
            "noise_trace": np.array([math.nan, math.inf, -1e-300]),
        },
        workload=WorkloadInfo(
            example_unit="sample", tokens_per_example=None, metric_unit="loss", parameters=20, data_hash=None
        ),
        geometries=(
            GeometryColumns(geometry="é", symbol=r"B_{\"}$", exponent=2, signal="examples", noise="noise_trace"),
        ),
        message='a "message" with é',
        decided={"ns_dtype": "bfloat16"},
        timing={"seconds": 0.25, "host": "here"},
    )
    return result.replace(**changes)


def assert_same(found: TrialResult, expected: TrialResult) -> None:
    assert found.steps.keys() == expected.steps.keys()
    for name, column in expected.steps.items():
        np.testing.assert_array_equal(found.steps[name], column)
        assert found.steps[name].dtype == column.dtype
    for mine, theirs in zip(found.evaluations, expected.evaluations, strict=True):
        numbers = [dataclasses.asdict(row) for row in (mine, theirs)]
        assert numbers[0].pop("others") == numbers[1].pop("others")
        np.testing.assert_array_equal([*numbers[0].values()], [*numbers[1].values()])
    assert found.replace(steps={}, evaluations=[]) == expected.replace(steps={}, evaluations=[])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "sweep")
    store.prepare()
    return store


def hidden(store: Store) -> list[Path]:
    return list(store.root.rglob(".tmp-*"))


@pytest.mark.parametrize(
    "result",
    [
        result_of(),
        result_of(
            TrialStatus.FAILED, steps_to_target=None, evaluations=[], steps={}, geometries=(), workload=None, decided={}
        ),
        result_of(geometries=(), decided={}, steps={"step": np.empty(0, dtype=np.int64), "train_loss": np.empty(0)}),
    ],
    ids=["full", "failed before the model was built", "no steps"],
)
def test_round_trip(store: Store, result: TrialResult) -> None:
    store.save(result)
    assert store.trial_ids() == [result.trial_id]
    assert_same(store.load(result.trial_id), result)
    assert_same(next(store.results()), result.replace(steps={}, geometries=()))
    assert hidden(store) == []


def test_the_same_trial_gives_the_same_bytes(tmp_path: Path) -> None:
    stores = [Store(tmp_path / name) for name in ("one", "two")]
    for store in stores:
        store.prepare()
        store.save(run_trial(CONFIG))
    for name in ("record.parquet", "steps.parquet"):
        one, two = ((store.trials / CONFIG.trial_id / name).read_bytes() for store in stores)
        assert one == two
    assert_same(stores[0].load(CONFIG.trial_id).replace(timing={}), run_trial(CONFIG).replace(timing={}))


def test_it_contains_what_was_saved_whatever_its_status(store: Store) -> None:
    assert not store.contains(CONFIG)
    store.save(result_of(TrialStatus.FAILED))
    assert store.contains(CONFIG)
    assert not store.contains(dataclasses.replace(CONFIG, seed=1))


def test_update_record_keeps_steps_and_timing(store: Store) -> None:
    store.save(result_of())
    pruned = result_of(TrialStatus.PRUNED, steps_to_target=None)
    store.update_record(pruned.replace(steps={}, timing={}))
    assert_same(store.load(CONFIG.trial_id), pruned)


def fail_on(call: int) -> Callable[[Path, Path], Path]:
    """``Path.rename``, out of disk at the given call."""
    real, calls = Path.rename, []

    def rename(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == call:
            raise OSError(28, "No space left on device")
        return real(self, target)

    return rename


@pytest.mark.parametrize(("call", "before"), [(1, True), (2, True), (1, False)])
def test_a_failed_save_leaves_what_was_there(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: int, before: bool
) -> None:
    if before:
        store.save(result_of(TrialStatus.FAILED))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail_on(call))
        with pytest.raises(ResultsError, match="No space left"):
            store.save(result_of())
    assert store.trial_ids() == [CONFIG.trial_id] * before
    if before:
        assert_same(store.load(CONFIG.trial_id), result_of(TrialStatus.FAILED))
    assert hidden(store) == []


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def save_and_die(store: Store, function: str, call: int) -> None:
    """Save a result; the process is killed at the ``call``-th call of ``os.fsync`` or ``Path.rename``."""
    owner = {"fsync": os, "rename": Path}[function]
    real, calls = getattr(owner, function), []

    def killed(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    setattr(owner, function, killed)
    store.save(result_of())


@pytest.mark.parametrize(("function", "call"), [("fsync", 1), ("fsync", 3), ("rename", 1), ("rename", 2)])
def test_a_kill_leaves_the_old_result_or_nothing(store: Store, function: str, call: int) -> None:
    store.save(result_of(TrialStatus.FAILED))
    child = multiprocessing.get_context("fork").Process(target=save_and_die, args=(store, function, call))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert hidden(store)
    found = list(store.results(with_steps=True))
    if (function, call) == ("rename", 2):
        assert found == []
    else:
        assert_same(found[0], result_of(TrialStatus.FAILED))
    store.prepare()
    assert hidden(store) == []
    store.save(result_of())
    assert_same(store.load(CONFIG.trial_id), result_of())


def test_prepare_removes_only_left_overs(store: Store) -> None:
    store.save(result_of())
    (store.trials / ".tmp-half").mkdir()
    (store.trials / ".tmp-half" / "steps.parquet").write_bytes(b"PAR1")
    (store.root / ".tmp-sweep.json-1").write_text("{")
    (store.trials / CONFIG.trial_id / ".tmp-record.parquet-1").write_bytes(b"")
    (store.root / "notes.txt").write_text("mine")
    store.prepare()
    assert hidden(store) == []
    assert (store.root / "notes.txt").read_text() == "mine"
    assert_same(store.load(CONFIG.trial_id), result_of())


def one_line(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(ResultsError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def with_summary(path: Path, summary: object) -> None:
    table = pq.read_table(path).replace_schema_metadata({METADATA_KEY: json.dumps(summary)})
    pq.write_table(table, path)


def summary_of(path: Path) -> dict[str, object]:
    return json.loads(pq.read_schema(path).metadata[METADATA_KEY])


@pytest.mark.parametrize("name", ["record.parquet", "steps.parquet", "timing.json"])
@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty", "missing", "pipe"])
def test_damaged_files_are_named_with_the_remedy(store: Store, name: str, damage: str) -> None:
    store.save(result_of())
    path = store.trials / CONFIG.trial_id / name
    content = path.read_bytes()
    if damage in ("missing", "pipe"):
        path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    elif damage != "missing":
        path.write_bytes({"garbage": b"\xff\x00" * 50, "truncated": content[: len(content) // 2], "empty": b""}[damage])
    one_line(lambda: store.load(CONFIG.trial_id), str(path), "run the sweep again")


@pytest.mark.parametrize("said", ["not JSON", "{}", None], ids=["text", "empty", "of a column that is not there"])
def test_columns_that_say_what_makes_no_sense_are_named_with_the_remedy(store: Store, said: str | None) -> None:
    result = result_of()
    store.save(result)
    path = store.trials / CONFIG.trial_id / "steps.parquet"
    text = json.dumps(dataclasses.asdict(result.geometries[0]) | {"signal": "absent"}) if said is None else said
    field = pa.field("step", pa.int64(), metadata={METADATA_KEY: text})
    pq.write_table(pa.table([pa.array([1, 2, 3])], schema=pa.schema([field])), path)
    one_line(lambda: store.load(CONFIG.trial_id), str(path), "run the sweep again")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"schema_version": SCHEMA_VERSION + 1},
            f"schema version {SCHEMA_VERSION + 1}, this cbs reads version {SCHEMA_VERSION}",
        ),
        ({"schema_version": None}, "schema version None"),
        ({"status": "EXPLODED"}, "EXPLODED"),
        ({"config": {"colour": 1}}, "not a trial configuration"),
        ({"workload": {"colour": 1}}, "colour"),
        *((summary, "") for summary in ([], "text", 3, {})),
    ],
)
def test_records_of_another_version_or_shape_are_refused(store: Store, change: object, words: str) -> None:
    store.save(result_of())
    path = store.trials / CONFIG.trial_id / "record.parquet"
    with_summary(path, summary_of(path) | change if isinstance(change, dict) and change else change)
    one_line(lambda: store.load(CONFIG.trial_id), str(path), words)


def test_foreign_files_are_refused(store: Store) -> None:
    folder = store.trials / "foreign"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1]}), folder / "record.parquet")
    one_line(lambda: store.load("foreign"), "was not written by cbs")
    pq.write_table(pa.table({"x": [1]}, metadata={"pandas": "{}"}), folder / "record.parquet")
    one_line(lambda: list(store.results()), "was not written by cbs")
    (store.trials / "notes.txt").write_text("mine")
    one_line(lambda: store.load("notes.txt"), "notes.txt")


@pytest.mark.parametrize("place", ["file/results", "file"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / place)
    one_line(store.prepare, str(store.root), "--output")
    one_line(lambda: store.save(result_of()), str(store.trials))
    one_line(lambda: store.write_manifest({}), "sweep.json")
    one_line(lambda: store.update_record(result_of()), "record.parquet")
    assert store.trial_ids() == []
    assert (tmp_path / "file").read_text() == "in the way"


def test_manifest_round_trip_and_refusals(store: Store) -> None:
    one_line(store.manifest, "is not a sweep")
    store.write_manifest({"recipe": "default", "trials": [1, 2]})
    assert store.manifest() == {"schema_version": SCHEMA_VERSION, "recipe": "default", "trials": [1, 2]}
    path = store.root / "sweep.json"
    for content, words in [
        ("{", "cannot read"),
        ("[1]", "not a JSON object"),
        ("{}", "schema version None"),
        ("\xff", "read"),
    ]:
        path.write_bytes(content.encode("latin-1"))
        one_line(store.manifest, str(path), words)
    path.unlink()
    os.mkfifo(path)
    one_line(store.manifest, str(path), "it is not a regular file")


def test_find_sweeps(tmp_path: Path) -> None:
    one_line(lambda: find_sweeps(tmp_path / "nowhere"), "does not exist")
    one_line(lambda: find_sweeps(tmp_path), "no sweep in")
    (tmp_path / "file").write_text("")
    one_line(lambda: find_sweeps(tmp_path / "file"), "is a file")
    for name in ("b", "a"):
        store = Store(tmp_path / "all" / name)
        store.prepare()
        store.write_manifest({})
    assert [store.root.name for store in find_sweeps(tmp_path / "all")] == ["a", "b"]
    assert [store.root.name for store in find_sweeps(tmp_path / "all" / "b")] == ["b"]


def test_a_trial_of_another_program_has_no_columns_of_its_steps_and_is_sound(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create()
    program = dataclasses.replace(CONFIG, workload=Choice(name="command", options={"command": "train"}))
    none = {"step": np.empty(0, np.int64), "examples": np.empty(0, np.int64), "train_loss": np.empty(0)}
    store.save(result_of(config=program, steps=none, geometries=()))
    assert [result.config for result in store.sound_results(pytest.fail)] == [program]
    store.save(result_of(steps=none, geometries=()))
    told: list[str] = []
    assert [result.config for result in store.sound_results(told.append)] == [program]
    assert len(told) == 1


def test_a_folder_that_cannot_be_renamed_is_copied(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the lower layer of a container's file system."""
    rename = Path.rename

    def refused(path: Path, place: Path) -> Path:
        if path.is_dir():
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(path, place)

    monkeypatch.setattr(Path, "rename", refused)
    store.save(result := result_of())
    store.save(changed := dataclasses.replace(result, message="another"))
    assert_same(store.load(result.trial_id), changed)
    copytree = shutil.copytree
    monkeypatch.setattr(shutil, "copytree", lambda path, place, **options: copytree(path, place) and full())
    with pytest.raises(ResultsError, match="No space left"):
        store.save(result)
    monkeypatch.setattr(shutil, "copytree", copytree)
    assert_same(store.load(result.trial_id), changed)
    record = store.trials / result.trial_id / "record.parquet"
    record.write_bytes(b"damaged")
    assert list(store.sound_results(lambda line: None)) == []
    assert [path.name for path in store.trials.iterdir()] == [f"{result.trial_id}.damaged"]
    assert set_aside(store.trials / f"{result.trial_id}.damaged" / "record.parquet").read_bytes() == b"damaged"


def test_records_with_other_columns_are_refused(store: Store) -> None:
    store.save(result_of())
    path = store.trials / CONFIG.trial_id / "record.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["lr"]), path)
    one_line(lambda: store.load(CONFIG.trial_id), "does not have the columns")


def test_what_can_be_written_is_known_before_anything_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "a" / "b", Path("a/b"), Path(".")):
        Store(root).check_writable()
    one_line(Store("file/results").check_writable, "file/results", "--output")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_manifest_leaves_the_old_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_manifest({"run": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda source, target: full())
        one_line(lambda: store.write_manifest({"run": 2}), "No space left")
    assert store.manifest()["run"] == 1
    assert hidden(store) == []
