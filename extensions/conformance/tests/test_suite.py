"""The conformance suite finds what is wrong and nothing where nothing is; it is run on every optimizer of the registry,
of torch and of pytorch_optimizer."""

from typing import Any
from zlib import crc32

import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from cbs.optimizers import LAMB, MERIT, OPTIMIZERS, Muon
from cbs.optimizers.library import UNUSABLE, _classes
from cbs.optimizers.sgd import SignSGD
from extensions.conformance import ContractCheck, Failure, checks, conformance_test, examine, subject
from extensions.conformance.state import same_state
from extensions.conformance.subjects import same
from extensions.conformance.surroundings import SCHEDULERS
from extensions.conformance.tests.broken import BROKEN, Adam, Good, adam, broken, like, plain
from extensions.conformance.tests.known_failures import LIBRARY
from tests.kinds import kinds
from tests.optimizers.test_every_optimizer import vector

test_a_correct_optimizer_passes = conformance_test(Good)


def test_a_correct_adam_passes() -> None:
    report = examine(Adam, only=checks(slow=False))
    assert report, str(report)


def marked(one: ContractCheck) -> object:
    return pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.slow else [])


@pytest.mark.parametrize("check", [marked(one) for one in checks()])
def test_a_check_fails_where_its_promise_is_broken(check: ContractCheck) -> None:
    with pytest.raises(Failure) as caught:
        check(broken(check.name))
    assert str(caught.value)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"a": [1.0]}, "state: ['a'] has another length"),
        ({"a": 1.0}, "state: ['a'] is [1.0, 2.0] and 1.0"),
        ({"a": [1.0, 3.0]}, "state: ['a'][1] is 2.0 and 3.0"),
        ({"b": [1.0, 2.0]}, "state: it has more or fewer keys: a, b"),
    ],
)
def test_states_of_another_form_are_told_by_their_path(other: Any, words: str) -> None:
    state = {"a": [1.0, 2.0]}
    same_state(state, {"a": (1.0, 2.0)}, "state")
    with pytest.raises(Failure) as caught:
        same_state(state, other, "state")
    assert str(caught.value) == words
    with pytest.raises(Failure):
        same_state(other, state, "state")


@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
def test_what_is_no_number_is_not_the_same(tolerance: float) -> None:
    numbers = {"w": torch.ones(3)}
    same(numbers, numbers, "alike", tolerance=tolerance)
    for one, other in ((1.0, torch.nan), (torch.nan, 1.0), (torch.nan, torch.nan), (torch.inf, 1.0)):
        with pytest.raises(Failure, match="apart"):
            same({"w": torch.full((3,), one)}, {"w": torch.full((3,), other)}, "apart", tolerance=tolerance)


def test_every_check_is_broken_and_says_what_is_promised() -> None:
    assert BROKEN.keys() == {one.name for one in checks()}
    for one in checks():
        assert one.name.startswith("check_")
        assert one.contract.endswith(".")


def test_every_scheduler_of_torch_is_in_the_table() -> None:
    base = lr_scheduler.LRScheduler
    known = {name for name, kind in vars(lr_scheduler).items() if isinstance(kind, type) and issubclass(kind, base)}
    assert {*SCHEDULERS} == known - {"LRScheduler", "_LRScheduler"} | {SWALR.__name__}


@pytest.mark.parametrize("kind", kinds([torch.optim.AdamW], [torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam]))
def test_torchs_own_keep_what_they_promise(kind: type[torch.optim.Optimizer]) -> None:
    report = examine(subject(kind, lr=1e-2), only=checks(beyond_torch=False, slow=False))
    assert report, str(report)


def with_(group: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {**group, **options}


OF_OPTIONS = {
    "decay against the gradient": (
        "check_weight_decay_shrinks",
        like(lambda self, p, g, group: plain(self, p, g - group["weight_decay"] * p, with_(group, weight_decay=0.0))),
        "lets hidden.weight grow",
    ),
    "first of betas": (
        "check_decays_matter",
        adam(update=lambda self, p, g, group: Adam.update(self, p, g, with_(group, betas=(0.9, group["betas"][1])))),
        r"another betas\[0\] in a group",
    ),
    "second of betas": (
        "check_decays_matter",
        adam(update=lambda self, p, g, group: Adam.update(self, p, g, with_(group, betas=(group["betas"][0], 0.99)))),
        r"another betas\[1\] in a group",
    ),
    "betas of the first group for all": (
        "check_decays_matter",
        adam(
            update=lambda self, p, g, group: Adam.update(self, p, g, with_(group, betas=self.param_groups[0]["betas"]))
        ),
        r"another betas\[0\] in a group",
    ),
    "first average": (
        "check_bias_correction",
        adam(corrected=lambda self, state, betas: (state["first"], Adam.corrected(self, state, betas)[1])),
        "the first average is not corrected",
    ),
    "second average": (
        "check_bias_correction",
        adam(corrected=lambda self, state, betas: (Adam.corrected(self, state, betas)[0], state["second"])),
        "the second average is not corrected",
    ),
}


@pytest.mark.parametrize("name", OF_OPTIONS)
def test_other_ways_to_break_an_option_are_found(name: str) -> None:
    check, kind, words = OF_OPTIONS[name]
    (tried,) = (one for one in checks() if one.name == check)
    with pytest.raises(Failure, match=words):
        tried(subject(kind, lr=0.1))


def test_adams_kind_is_told_by_its_steps() -> None:
    only = [one for one in checks() if one.name in ("check_bias_correction", "check_eps_is_outside_the_root")]
    for name in ("adam", "adamw"):
        assert not examine(name, only=only).left_out
    for name in ("lamb", "merit", "soap", "sgd", "muon", "adafactor"):
        assert len(examine(name, only=only).left_out) == 2


class Wary(Good):
    """As schedule-free methods are: no step before ``train()``."""

    training = False

    def train(self) -> None:
        self.training = True

    def eval(self) -> None:
        self.training = False

    def step(self, closure: Any = None) -> Any:
        assert self.training
        return super().step(closure)


def test_a_method_that_must_be_told_to_train_is_told() -> None:
    names = ("check_learns", "check_resumes_bitwise", "check_deepcopy")
    report = examine(Wary, only=[one for one in checks() if one.name in names])
    assert report, str(report)


def test_one_that_takes_matrices_only() -> None:
    report = examine(torch.optim.Muon, lr=2e-2, matrices=True, only=checks(beyond_torch=False, slow=False))
    assert report, str(report)
    assert "check_shapes" in report.left_out


def test_known_failures_must_fail() -> None:
    test = conformance_test(Good, known={("Good", "check_closure"): "why"})
    ((_, params),) = (mark.args for mark in test.pytestmark)
    marks = {param.id: {mark.name: mark.kwargs for mark in param.marks} for param in params}
    assert marks["Good-check_closure"] == {"xfail": {"strict": True, "raises": Failure, "reason": "why"}}
    assert marks["Good-check_compiled"] == {"slow": {}}
    assert not marks["Good-check_learns"]
    with pytest.raises(ValueError, match="check_clsure"):
        conformance_test(Good, known={("Good", "check_clsure"): "why"})


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
