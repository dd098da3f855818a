"""What ``sweep.json`` says of the software that ran."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

import cbs
from cbs.config import Choice
from cbs.errors import ResultsError
from cbs.store import Store
from sweeps.manifest import merged_manifest, provenance
from sweeps.spec import Sweep
from tests.sweeps.simulation import small_sweep


def test_versions_are_those_that_run() -> None:
    versions = provenance("cbs sweep")["versions"]
    assert versions["python"] == platform.python_version()
    assert versions["cbs"] == cbs.__version__
    assert versions["torch"] == torch.__version__


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


def test_an_older_folder_with_options_in_its_protocol_goes_on(tmp_path: Path) -> None:
    store = prepared(tmp_path, small_sweep())
    manifest = store.manifest()
    manifest["protocol"]["optimizer_options"] = {"merit": {"eps": 1e-6}}
    store.write_manifest(manifest)
    merged = merged_manifest(store, small_sweep(optimizers=(Choice(name="merit", options={"eps": 1e-6}),)), "second")
    assert merged["axes"]["optimizers"] == ["adamw", "merit(eps=1e-06)"]
    assert "optimizer_options" not in merged["protocol"]
    with pytest.raises(ResultsError, match="max_steps = 2000, not 3"):
        merged_manifest(store, small_sweep(max_steps=3), "third")
