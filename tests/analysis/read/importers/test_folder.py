"""The folder of an import: in one piece or not at all, added to only by its like, and readable by everything else."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.read.importers import import_runs, importing
from analysis.read.results import load
from cbs.errors import CbsError, DataError, ResultsError
from cbs.trial.store import Store
from tests.analysis.read.importers.sources import CURVES, long_rows, settings, write_csv
from tests.factories import sweep


def source(tmp_path: Path, name: str = "runs.csv", curves: slice = slice(None)) -> Path:
    return write_csv(tmp_path / "in" / name, long_rows(CURVES[curves]))


def test_the_manifest_says_where_everything_came_from(tmp_path: Path) -> None:
    path = source(tmp_path)
    import_runs([path], tmp_path / "out", settings(), command="cbs import runs.csv")
    manifest = Store(tmp_path / "out").manifest()
    assert manifest["name"] == "out"
    assert manifest["protocol"] == {
        "stops_at_target": False,
        "prune_factor": None,
        "target": {"metric": "loss", "value": 2.4, "direction": "below"},
        "example_unit": "sequence",
        "tokens_per_example": None,
        "metric_unit": "nats",
    }
    assert manifest["axes"]["batch_sizes"] == [2, 8, 32, 128, 512]
    (entry,) = manifest["imported"]
    assert (entry["source"], entry["format"], entry["command"]) == ([str(path)], "table", "cbs import runs.csv")
    assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert entry["settings"]["metric_unit"] == "nats"
    assert entry["when"].endswith("+00:00")


def test_a_folder_that_is_taken_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    import_runs([source(tmp_path)], tmp_path / "out", settings())
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    for add in (False, True):
        with pytest.raises(ResultsError, match="choose another folder") as caught:
            import_runs(["/no/such/file"], tmp_path / "out", settings(target=2.0), add=add)
        assert ("target = " in str(caught.value)) is add
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match="is a file"):
        import_runs([source(tmp_path)], tmp_path / "file", settings())


def test_more_runs_are_added_and_the_same_are_refused(tmp_path: Path) -> None:
    import_runs([source(tmp_path, curves=slice(0, 6))], tmp_path / "out", settings())
    import_runs([source(tmp_path, "more.csv", slice(6, None))], tmp_path / "out", settings(), add=True)
    results = load(tmp_path / "out")
    assert len(results.trials) == len(CURVES)
    (answer,) = answers(results, AnalysisConfig(resamples=100))
    assert answer.critical_batch_size == pytest.approx(32.0, rel=0.1)
    manifest = Store(tmp_path / "out").manifest()
    assert [entry["runs"] for entry in manifest["imported"]] == [6, 9]
    assert manifest["axes"]["batch_sizes"] == [2, 8, 32, 128, 512]
    with pytest.raises(DataError, match=r"run adamw-b512-lr0\.004-s0 has .* which is in the folder already"):
        import_runs([source(tmp_path, "last.csv", slice(14, None))], tmp_path / "out", settings(), add=True)
    assert len(load(tmp_path / "out").trials) == len(CURVES)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("add", [False, True])
def test_a_disk_that_fails_in_the_middle_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: bool
) -> None:
    if add:
        import_runs([source(tmp_path, curves=slice(0, 3))], tmp_path / "out", settings())
    save, calls = Store.save, []

    def failing(self: Store, result: Any, **how: Any) -> None:
        calls.append(result)
        if len(calls) >= 3:
            raise OSError(28, "No space left on device")
        save(self, result, **how)

    monkeypatch.setattr(Store, "save", failing)
    with pytest.raises(ResultsError, match=r"cannot write .*out: No space left on device"):
        import_runs([source(tmp_path, curves=slice(3, None))], tmp_path / "out", settings(), add=add)
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == (["in", "out"] if add else ["in"])
    if add:
        assert len(load(tmp_path / "out").trials) == 3


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda p: "/no/such/thing", "no such file or folder: /no/such/thing"),
        (lambda p: p, "is of no known format; choose one with --format: .*csv, .*final_losses, .*jsonl"),
        (lambda p: (p / "notes.txt").touch() or p / "notes.txt", "is of no known format"),
        (lambda p: sweep(p / "s", batch_sizes=(8,), lrs=(1e-3,), growth=1.5).root, "is a sweep of cbs already"),
        (
            lambda p: ((p / "x.jsonl").write_text('{"step": 1}'), write_csv(p / "x.csv", long_rows()))[0] and p,
            r"may be jsonl \(1 file of JSON lines\) or table \(1 table, x.csv with columns batch.*; choose one",
        ),
    ],
)  # fmt: skip
def test_a_source_of_no_or_two_formats_is_one_line(tmp_path: Path, prepare: Any, words: str) -> None:
    (tmp_path / "in").mkdir()
    path = prepare(tmp_path / "in")
    with pytest.raises(CbsError, match=words) as caught:
        import_runs([path], tmp_path / "out", settings())
    assert "\n" not in str(caught.value)


def test_left_overs_of_a_killed_import_are_no_sweep_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException): ...

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    first, more = source(tmp_path, curves=slice(0, 3)), source(tmp_path, "more.csv", slice(3, None))
    top = tmp_path / "results"
    import_runs([first], top / "out", settings())
    monkeypatch.setattr(Store, "save", killed)
    monkeypatch.setattr(importing.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Killed):
        import_runs([more], top / "out", settings(), add=True)
    monkeypatch.undo()
    assert len(list(top.iterdir())) == 2
    assert len(load(top).trials) == 3
    import_runs([more], top / "out", settings(), add=True)
    assert [path.name for path in top.iterdir()] == ["out"]
