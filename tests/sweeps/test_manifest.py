"""What ``sweep.json`` says of the software that ran."""

from __future__ import annotations

import pytest

from cbs.config import Choice
from cbs.optimizers.trust_ratio import kernel
from sweeps.manifest import provenance


@pytest.mark.parametrize(("names", "told"), [(["sgd"], False), (["sgd", "merit"], True), (["lamb"], True)])
def test_the_path_of_the_trust_ratios_is_told_where_they_run(names: list[str], told: bool) -> None:
    versions = provenance("cbs sweep", [Choice(name=name) for name in names])["versions"]
    assert ("trust_ratio" in versions) == told
    assert not told or versions["trust_ratio"] == kernel.version()


def test_without_compiled_code_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "automatic", lambda: None)
    assert provenance("cbs sweep", [Choice(name="merit")])["versions"]["trust_ratio"] == "portable"
