"""What ``sweep.json`` says of the software that ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbs.config import Choice
from cbs.errors import ResultsError
from cbs.optimizers.trust_ratio import kernel
from cbs.store import Store
from sweeps.manifest import merged_manifest, provenance
from sweeps.spec import Sweep
from tests.sweeps.simulation import small_sweep


@pytest.mark.parametrize(("names", "told"), [(["sgd"], False), (["sgd", "merit"], True), (["lamb"], True)])
def test_the_path_of_the_trust_ratios_is_told_where_they_run(names: list[str], told: bool) -> None:
    versions = provenance("cbs sweep", [Choice(name=name) for name in names])["versions"]
    assert ("trust_ratio" in versions) == told
    assert not told or versions["trust_ratio"] == kernel.version()


def test_without_compiled_code_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "automatic", lambda: None)
    assert provenance("cbs sweep", [Choice(name="merit")])["versions"]["trust_ratio"] == "portable"


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
