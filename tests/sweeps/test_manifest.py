"""What ``sweep.json`` says of the software that ran."""

import platform
import re
import sys
import types
from pathlib import Path

import pytest
import torch

import cbs
from analysis.read.results import load
from cbs.errors import ResultsError
from cbs.trial.config import Choice
from cbs.trial.store import Store
from sweeps.folder.manifest import all_code_changes, code_changes, latest_run, merged_manifest, own_code, provenance
from sweeps.spec.spec import Sweep
from tests.factories import sweep as write_sweep
from tests.sweeps import test_own_code
from tests.sweeps.simulation import small_sweep


def test_versions_are_those_that_run() -> None:
    versions = provenance("cbs sweep")["versions"]
    assert versions["python"] == platform.python_version()
    assert versions["cbs"] == cbs.__version__
    assert versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]


def prepared(tmp_path: Path, sweep: Sweep) -> Store:
    store = Store(tmp_path)
    store.prepare()
    store.write_manifest(merged_manifest(store, sweep, "first"))
    return store


def test_other_options_join_as_variants(tmp_path: Path) -> None:
    store = prepared(tmp_path, small_sweep(optimizers=(Choice(name="muon"),)))
    variant = Choice(name="muon", options={"nesterov": False})
    merged = merged_manifest(store, small_sweep(optimizers=(variant, Choice(name="muon"))), "second")
    assert merged["axes"]["optimizers"] == ["muon", "muon(nesterov=false)"]
    assert len(merged["runs"]) == 2


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


def test_an_analysis_says_that_trials_are_of_other_code(tmp_path: Path) -> None:
    store = write_sweep(tmp_path, batch_sizes=(4, 16), lrs=(1e-3, 2e-3))
    assert not load(tmp_path).notes
    manifest = {key: value for key, value in store.manifest().items() if key != "schema_version"}
    store.write_manifest(manifest | {"runs": [{}, {"code_changes": ["torch 1, then 2"], "earlier_trials": ["a", "b"]}]})
    (note,) = load(tmp_path).notes
    assert note.endswith("2 trials were run by different code than later ones: torch 1, then 2")


def test_what_does_not_make_numbers_is_no_change_of_code() -> None:
    run = {"versions": {"cbs": "1", "ray": "2"}, "git": {"cbs": "abc", "working_directory": "x"}}
    other = {"versions": {"cbs": "1", "ray": "3", "torch": "9"}, "git": {"cbs": "abc", "working_directory": "y"}}
    assert code_changes(run, other) == []
    assert code_changes(run, other | {"git": {"cbs": "abd"}}) == ["commit of cbs abc, then abd"]
    assert code_changes({"versions": 7}, other) == []
    assert latest_run([run, {"merged": ["a"]}]) == run
    assert latest_run(["none"]) == {}
