"""LAMB against its slow twin, and what it reduces to."""

import pytest
import torch
from torch import Tensor, nn

from cbs.optimizers import LAMB
from tests.optimizers.trust_ratios import STEPS, assert_agrees, beside_twin, gradients, run, starts
from tests.references.lamb import LambTwin

BASE = {"lr": 0.03, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.0}
VARIANTS = {
    "default": {},
    "weight decay": {"weight_decay": 0.1},
    "no bias correction": {"bias_correction": False, "weight_decay": 0.1},
    "phi from below": {"gamma_l": 0.8},
    "phi from above": {"gamma_u": 0.5},
    "phi": {"gamma_l": 0.5, "gamma_u": 1.0},
    "BERT exclusions": {"ratio_from_ndim": 2, "decay_from_ndim": 2, "weight_decay": 0.1},
}


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_agrees_with_the_twin_in_float64(name: str, foreach: bool | None) -> None:
    fast, slow = beside_twin(LAMB, LambTwin, torch.float64, {**BASE, **VARIANTS[name]}, foreach=foreach)
    # Only the order of rounding differs: 8 steps of a few ulp each, far below 1e-9.
    assert_agrees(fast, slow, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_agrees_with_the_twin_in_float32(name: str) -> None:
    fast, slow = beside_twin(LAMB, LambTwin, torch.float32, {**BASE, **VARIANTS[name]})
    # Weights are of order 0.3 (up to 6) and each of 8 steps rounds at 6e-8 relative; ratios amplify that by ~10.
    assert_agrees(fast, slow, rtol=2e-5, atol=5e-6)


def test_every_variant_differs_from_the_default() -> None:
    default = run(LAMB, torch.float64, **BASE)
    for name, options in VARIANTS.items():
        if options:
            other = run(LAMB, torch.float64, **{**BASE, **options})
            assert any(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(default, other, strict=True)), name


def test_changes_every_tensor_by_lr_of_its_norm() -> None:
    params = [nn.Parameter(torch.tensor(start)) for start in starts(3)]
    before = [param.detach().clone() for param in params]
    for param, gradient in zip(params, gradients(4, 0), strict=True):
        param.grad = torch.tensor(gradient)
    LAMB(params, lr=0.02).step()
    for param, start in zip(params, before, strict=True):
        if start.norm() > 0 and param.grad.norm() > 0:
            # Rounding only.
            torch.testing.assert_close((param.detach() - start).norm(), 0.02 * start.norm(), rtol=1e-10, atol=0.0)


def trained(optimizer_class: type[torch.optim.Optimizer], **options: object) -> list[Tensor]:
    params = [nn.Parameter(torch.tensor(start)) for start in starts(5)]
    optimizer = optimizer_class(params, lr=0.01, betas=(0.8, 0.95), eps=1e-6, **options)
    for step in range(STEPS):
        for param, gradient in zip(params, gradients(6, step), strict=True):
            param.grad = torch.tensor(gradient)
        optimizer.step()
    return [param.detach() for param in params]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_ratio_it_is_adamw(weight_decay: float) -> None:
    ours = trained(LAMB, ratio_from_ndim=9, weight_decay=weight_decay)
    # d + weight_decay * w with a unit ratio moves by lr * weight_decay * w: exactly AdamW's decoupled decay.
    theirs = trained(torch.optim.AdamW, weight_decay=weight_decay)
    # Same formula, other order of rounding.
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


def test_a_tensor_as_large_as_its_direction_takes_the_step_of_adam() -> None:
    torch.manual_seed(0)
    gradient, start = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    # Adam's first direction has entries of 1 but for eps, so its norm is that of the signs.
    start *= (gradient / (gradient.abs() + 1e-8)).norm() / start.norm()
    ends = []
    for kind in (LAMB, torch.optim.Adam):
        weight = nn.Parameter(start.clone())
        weight.grad = gradient
        kind([weight], lr=0.01, betas=(0.9, 0.99), eps=1e-8).step()
        ends.append(weight.detach())
    torch.testing.assert_close(*ends, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma_l": -1.0}, "gamma_l must be finite and at least 0, got -1.0"),
        ({"gamma_l": 1.0, "gamma_u": 0.5}, "gamma_u must be None or at least gamma_l = 1.0, got 0.5"),
    ],
)
def test_values_outside_their_domain_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LAMB([nn.Parameter(torch.ones(1))], **options)
