"""Muon against torch.optim.Muon, and the two parts it is made of."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from cbs.optimizers import build_optimizer
from cbs.optimizers.composite import CompositeOptimizer
from cbs.optimizers.layout import as_matrices
from cbs.optimizers.muon import Muon
from cbs.trial.config import Choice
from cbs.workloads.text_parts import GPT, GPTShape
from tests.optimizers.test_contract import EVERY

SHAPES = [(8, 24), (24, 8), (8, 8), (1, 5), (32, 96), (96, 32)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"nesterov": False, "momentum": 0.8},
        {"ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5)},
        {"lr_convention": "original"},
    ],
)
def test_steps_bitwise_like_torchs_muon(options: dict) -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = [nn.Parameter(param.detach().clone()) for param in ours]
    optimizer = Muon(ours, 0.02, ns_dtype="bfloat16", **options)
    convention = {"adjust_lr_fn": options.get("lr_convention", "match_rms_adamw"), "weight_decay": 0.0}
    reference = torch.optim.Muon(
        theirs, 0.02, **convention | {key: value for key, value in options.items() if key != "lr_convention"}
    )
    for _ in range(20):
        for param, other in zip(ours, theirs, strict=True):
            param.grad = torch.randn(param.shape)
            other.grad = param.grad.clone()
        optimizer.step()
        reference.step()
    for param, other in zip(ours, theirs, strict=True):
        assert torch.equal(param, other)


@pytest.mark.parametrize("convention", [None, "original", "match_rms_adamw"])
@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, lambda optimizer: CompositeOptimizer([optimizer])])
def test_continues_bitwise_from_a_state_of_torchs_muon(convention: str | None, wrap: Callable) -> None:
    torch.manual_seed(0)
    theirs = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    reference = torch.optim.Muon(theirs, 0.02, adjust_lr_fn=convention, weight_decay=0.0)
    ours: list[nn.Parameter] = []
    for step in range(10):
        if step == 5:
            ours = [nn.Parameter(param.detach().clone()) for param in theirs]
            optimizer = wrap(Muon(ours, 0.5, ns_dtype="bfloat16"))
            optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
        for position, param in enumerate(theirs):
            param.grad = torch.randn(param.shape)
            if ours:
                ours[position].grad = param.grad.clone()
        reference.step()
        if ours:
            optimizer.step()
    for param, other in zip(ours, theirs, strict=True):
        assert torch.equal(param, other)
    assert optimizer.param_groups[0]["lr_convention"] == (convention or "original")
    assert not {"adjust_lr_fn", "eps"} & set(optimizer.param_groups[0])


def small_gpt() -> nn.Module:
    torch.manual_seed(0)
    return GPT(GPTShape(width=8, layers=1, heads=2, context=4), vocab_size=16)


def test_convolution_kernels_are_adamws_unless_asked_for() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Linear(4, 4, bias=False))
    matrices, rest = build_optimizer(Choice(name="muon"), model, 0.01).optimizers
    assert [id(param) for param in matrices.param_groups[0]["params"]] == [id(model[1].weight)]
    assert [id(param) for param in rest.param_groups[0]["params"]] == [id(model[0].weight)]
    (part,) = build_optimizer(Choice(name="muon", options={"matrices": "kernels"}), model, 0.01).optimizers
    assert [tuple(param.shape) for param in part.param_groups[0]["params"]] == [(4, 3, 3, 3), (4, 4)]
    with pytest.raises(ValueError, match=r"Muon takes matrices, got a parameter of shape \(4,\)"):
        Muon([nn.Parameter(torch.ones(4))])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ns_coefficients": (2.0, -1.5)}, "three numbers"),
        ({"ns_coefficients": (2.0, -1.5, "half")}, "three numbers"),
        ({"ns_steps": 0}, "from 1 to 99"),
        ({"ns_steps": 100}, "from 1 to 99"),
    ],
)
def test_an_iteration_that_torch_could_not_run_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Muon([nn.Parameter(torch.ones(4, 4))], **options)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((4, 3, 3, 3), "out_in"), ((3, 4, 2), "in_out"), ((3, 5), "in_out"), ((2, 5, 3), "experts_out_in")],
)
@EVERY
def test_what_is_no_plain_matrix_steps_like_its_matrices(kind: type, shape: tuple[int, ...], layout: str) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    stack = layout.startswith("experts")
    matrices = as_matrices(weight.detach(), layout)
    plain = [nn.Parameter(matrix.clone()) for matrix in (matrices if stack else [matrices])]
    optimizer = kind([{"params": [weight], "layout": layout}], 0.1, weight_decay=0.1)
    reference = kind(plain, 0.1, weight_decay=0.1)
    for _ in range(3):
        weight.grad = torch.randn(shape, dtype=torch.float64)
        gradients = as_matrices(weight.grad, layout)
        for param, gradient in zip(plain, gradients if stack else [gradients], strict=True):
            param.grad = gradient.clone()
        optimizer.step()
        reference.step()
    found = as_matrices(weight.detach(), layout)
    for param, matrix in zip(plain, found if stack else [found], strict=True):
        # Products of a stack add in another order.
        torch.testing.assert_close(matrix, param.detach(), rtol=0.0, atol=1e-10)


def test_adamws_learning_rate_is_a_multiple_that_schedulers_and_sweeps_keep() -> None:
    for lr in (0.01, 0.04):
        optimizer = build_optimizer(Choice(name="muon", options={"adam_lr_ratio": 0.25}), small_gpt(), lr)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        assert [group["lr"] for group in optimizer.param_groups] == [lr, 0.25 * lr]
        optimizer.step()
        scheduler.step()
        assert [group["lr"] for group in optimizer.param_groups] == [0.5 * lr, 0.125 * lr]
