"""LARS against its slow twin, and what it reduces to."""

import pytest
import torch
from torch import nn

from cbs.optimizers.lars import LARS
from tests.optimizers.trust_ratios import STEPS, assert_agrees, beside_twin, gradients, run, starts
from tests.references.lars import LarsTwin

BASE = {"lr": 5.0, "momentum": 0.9, "weight_decay": 0.0}
VARIANTS = {
    "paper": {},
    "paper, weight decay": {"weight_decay": 0.1},
    "coefficient": {"trust_coefficient": 0.01, "weight_decay": 0.1},
    "no momentum": {"momentum": 0.0},
    "vision exclusions": {"ratio_from_ndim": 2, "decay_from_ndim": 2, "weight_decay": 0.1, "lr": 0.5},
}


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_agrees_with_the_twin_in_float64(name: str, foreach: bool | None) -> None:
    fast, slow = beside_twin(LARS, LarsTwin, torch.float64, {**BASE, **VARIANTS[name]}, foreach=foreach)
    # Only the order of rounding differs: 8 steps of a few ulp each, far below 1e-9.
    assert_agrees(fast, slow, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_agrees_with_the_twin_in_float32(name: str) -> None:
    fast, slow = beside_twin(LARS, LarsTwin, torch.float32, {**BASE, **VARIANTS[name]})
    # Weights are of order 0.3 (up to 6) and each of 8 steps rounds at 6e-8 relative; ratios amplify that by ~10.
    assert_agrees(fast, slow, rtol=2e-5, atol=5e-6)


def test_every_variant_differs_from_the_default() -> None:
    default = run(LARS, torch.float64, **BASE)
    for name, options in VARIANTS.items():
        if options:
            other = run(LARS, torch.float64, **{**BASE, **options})
            assert any(not torch.allclose(a, b, rtol=1e-3) for a, b in zip(default, other, strict=True)), name


def test_first_step_changes_every_tensor_by_lr_times_the_coefficient_of_its_norm() -> None:
    params = [nn.Parameter(torch.tensor(start)) for start in starts(3)]
    before = [param.detach().clone() for param in params]
    for param, gradient in zip(params, gradients(4, 0), strict=True):
        param.grad = torch.tensor(gradient)
    LARS(params, lr=3.0).step()
    for param, start in zip(params, before, strict=True):
        if start.norm() > 0 and param.grad.norm() > 0:
            # Rounding only.
            torch.testing.assert_close((param.detach() - start).norm(), 0.003 * start.norm(), rtol=1e-10, atol=0.0)


def test_without_ratio_it_is_sgd_with_momentum() -> None:
    ends = []
    for kind, options in ((LARS, {"ratio_from_ndim": 9}), (torch.optim.SGD, {})):
        params = [nn.Parameter(torch.tensor(start)) for start in starts(5)]
        optimizer = kind(params, lr=0.01, momentum=0.8, weight_decay=0.1, **options)
        for step in range(STEPS):
            for param, gradient in zip(params, gradients(6, step), strict=True):
                param.grad = torch.tensor(gradient)
            optimizer.step()
        ends.append([param.detach() for param in params])
    # With a constant learning rate it does not matter on which side of the buffer it is; other order of rounding.
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-13)


def test_a_learning_rate_stays_with_the_gradients_it_was_set_for() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = LARS([weight], lr=1.0, momentum=0.5)
    weight.grad = torch.ones(4, dtype=torch.float64)
    optimizer.step()
    moved = 1.0 - weight[0].item()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert 1.0 - weight[0].item() == pytest.approx(1.5 * moved, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.0}, "momentum must be in"),
        ({"trust_coefficient": -1.0}, "trust_coefficient must be finite and at least 0, got -1.0"),
    ],
)
def test_values_outside_their_domain_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LARS([nn.Parameter(torch.ones(1))], **options)
