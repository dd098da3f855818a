"""The checks on every optimizer of the registry; a new entry is tested without an edit here."""

from zlib import crc32

import pytest
import torch

from cbs.optimizers import LAMB, MERIT, OPTIMIZERS, Muon
from cbs.optimizers.signsgd import SignSGD
from extensions.conformance import ContractCheck, checks, examine, subject
from tests.optimizers.test_every_optimizer import vector

# A name whose entry is its class alone; what takes parameters, not a model, is asked of more.
CLASSES = {"lamb", "merit", "signsgd"}
CLASS_SUBJECTS = {
    **{kind.__name__: subject(kind) for kind in (MERIT, LAMB, SignSGD)},
    "Muon": subject(Muon, lr=1e-2, matrices=True),
}
HALVES = pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "slow"])


def asked_of(name: str, slow: bool) -> list[ContractCheck]:
    """In the fast suite what an optimizer keeps, and a third of the rest, another one of every optimizer."""

    def quick(one: ContractCheck) -> bool:
        kept = one.function.__module__ == "extensions.conformance.state"
        return not one.slow and (kept or crc32(f"{name} {one.name}".encode()) % 3 == 0)

    return [one for one in checks() if quick(one) != slow]


def test_every_quick_check_is_asked_of_some_optimizer() -> None:
    asked = {one.name for name in [*CLASS_SUBJECTS, *OPTIMIZERS.names()] for one in asked_of(name, False)}
    assert asked == {one.name for one in checks(slow=False)}


@HALVES
@pytest.mark.parametrize("name", CLASS_SUBJECTS)
def test_class_conforms(name: str, slow: bool) -> None:
    report = examine(CLASS_SUBJECTS[name], only=asked_of(name, slow))
    assert report, str(report)


def by_others(name: str) -> set[type[torch.optim.Optimizer]]:
    """The classes of torch and pytorch_optimizer that an entry only dresses; none where the method is our own."""
    built = vector(name)
    parts = getattr(built, "optimizers", [built])
    kinds = {
        next(kind for kind in type(part).__mro__ if not kind.__module__.startswith(("cbs.", "extensions.")))
        for part in parts
    }
    return set() if torch.optim.Optimizer in kinds else kinds


@HALVES
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS.names() if name not in CLASSES])
def test_conforms(name: str, slow: bool) -> None:
    """What a class of others does not keep by itself is not asked of the entry that dresses it."""
    report = examine(name, only=asked_of(name, slow))
    theirs, lr = by_others(name), OPTIMIZERS[name].lr_grid[1]
    for check in checks():
        if check.name in report.failed:
            assert theirs, str(report)
            assert not any(examine(kind, only=[check], lr=lr) for kind in theirs), str(report)
