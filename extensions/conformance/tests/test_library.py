"""The checks on optimizers of torch and pytorch_optimizer, but for what a table says of them."""

import pytest

from cbs.optimizers.library import UNUSABLE, _classes
from extensions.conformance import checks, examine
from extensions.conformance.tests.known_failures import LIBRARY

pytest.importorskip("pytorch_optimizer")
EVERY_CLASS = {**_classes("torch"), **_classes("pytorch_optimizer")}
FAST = ("torch.nadam", "pytorch_optimizer.muon")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow])
        for name in sorted(EVERY_CLASS.keys() - UNUSABLE.keys())
    ],
)
def test_conforms_but_for_what_the_table_says(name: str) -> None:
    report = examine(name, only=checks(beyond_torch=False, slow=False))
    known = {check for optimizer, check in LIBRARY if optimizer == name}
    assert set(report.failed) == known, str(report)


def test_the_table_of_failures_holds_only_known_names() -> None:
    known = {one.name for one in checks(beyond_torch=False, slow=False)}
    assert {optimizer for optimizer, _ in LIBRARY} <= EVERY_CLASS.keys() - UNUSABLE.keys()
    assert {check for _, check in LIBRARY} <= known
