"""The conformance suite finds what is wrong, and nothing where nothing is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler
from torch.optim.optimizer import ParamsT
from torch.optim.swa_utils import SWALR

from cbs.testing import Check, Failure, Subject, checks, conformance_test, examine, require, subject
from cbs.testing.subjects import same
from cbs.testing.surroundings import SCHEDULERS
from tests.testing.broken import BROKEN, Good, broken

UNTESTED = {"check_capturable"}
"""Needs a CUDA device."""

test_a_correct_optimizer_passes = conformance_test(Good)


def marked(one: Check) -> object:
    return pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.slow else [])


@pytest.mark.parametrize("check", [marked(one) for one in checks() if one.name not in UNTESTED])
def test_a_check_fails_where_its_promise_is_broken(check: Check) -> None:
    with pytest.raises(Failure) as caught:
        check(broken(check.name))
    assert str(caught.value)


@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
def test_what_is_no_number_is_not_the_same(tolerance: float) -> None:
    numbers = {"w": torch.ones(3)}
    same(numbers, numbers, "alike", tolerance=tolerance)
    for one, other in ((1.0, torch.nan), (torch.nan, 1.0), (torch.nan, torch.nan), (torch.inf, 1.0)):
        with pytest.raises(Failure, match="apart"):
            same(
                {"w": torch.full((3,), one)},
                {"w": torch.full((3,), other)},
                "apart",
                tolerance=tolerance,
            )


def test_every_check_is_broken_and_says_what_is_promised() -> None:
    assert BROKEN.keys() | UNTESTED == {one.name for one in checks()}
    for one in checks():
        assert one.name.startswith("check_")
        assert one.contract.endswith(".")


def test_every_scheduler_of_torch_is_in_the_table() -> None:
    base = lr_scheduler.LRScheduler
    known = {name for name, kind in vars(lr_scheduler).items() if isinstance(kind, type) and issubclass(kind, base)}
    assert {*SCHEDULERS} == known - {"LRScheduler", "_LRScheduler"} | {SWALR.__name__}


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.NAdam])
def test_torchs_own_keep_what_they_promise(kind: type[torch.optim.Optimizer]) -> None:
    require(subject(kind, lr=1e-2), only=checks(beyond_torch=False, slow=False))


class Ignored(Good):
    """Takes a weight decay, and its groups do not say so."""

    def __init__(self, params: ParamsT, lr: float = 0.1, *, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr)
        for group in self.param_groups:
            del group["weight_decay"]

    def update(self, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        super().update(param, gradient, group | {"weight_decay": 0.0})


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


def test_a_weight_decay_that_is_taken_and_ignored_is_found() -> None:
    (decays,) = (one for one in checks() if one.name == "check_weight_decay")
    with pytest.raises(Failure, match="weight decay changes nothing"):
        decays(subject(Ignored))


def test_a_method_that_must_be_told_to_train_is_told() -> None:
    names = ("check_learns", "check_resumes_bitwise", "check_deepcopy")
    require(Wary, only=[one for one in checks() if one.name in names])


def test_one_that_takes_matrices_only() -> None:
    report = examine(torch.optim.Muon, lr=2e-2, matrices=True, only=checks(beyond_torch=False, slow=False))
    assert report, str(report)
    assert "check_shapes" in report.left_out


def test_a_report_says_in_words_what_fails() -> None:
    report = examine(broken("check_sparse_gradients"), only=checks(slow=False))
    assert not report
    # pickle does not find a class that was made in a function.
    assert set(report.failed) == {"check_pickle", "check_sparse_gradients"}
    assert str(report).splitlines()[0].startswith("Broken: ")
    assert "check_sparse_gradients: sparse gradients: " in str(report)
    with pytest.raises(Failure, match="check_sparse_gradients"):
        require(broken("check_sparse_gradients"), only=checks(slow=False))


def test_subjects() -> None:
    assert subject("merit").name == "merit"
    assert subject(Good).lr == 0.1
    assert subject(Good, lr=1, momentum=0.5).run().optimizer.param_groups[0]["momentum"] == 0.5
    with pytest.raises(TypeError, match="Say lr="):
        subject(torch.optim.LBFGS.__init__)
    one = Subject(name="mine", build=Good, lr_grid=(0.1,))
    assert subject(one) is one


def test_known_failures_must_fail() -> None:
    test = conformance_test(Good, known={("Good", "check_closure"): "why"})
    ((_, params),) = (mark.args for mark in test.pytestmark)
    marks = {param.id: {mark.name: mark.kwargs for mark in param.marks} for param in params}
    assert marks["Good-check_closure"] == {"xfail": {"strict": True, "raises": Failure, "reason": "why"}}
    assert marks["Good-check_compiled"] == {"slow": {}}
    assert not marks["Good-check_learns"]
    with pytest.raises(ValueError, match="check_clsure"):
        conformance_test(Good, known={("Good", "check_clsure"): "why"})
