"""LAMB, LARS and MERIT against their slow twins, and what they reduce to."""

import pytest
import torch
from torch import nn

from cbs.optimizers import LAMB, MERIT
from cbs.optimizers.lars import LARS
from tests.optimizers.trust_ratios import STEPS, assert_agrees, beside_twin, gradients, starts
from tests.references.lamb import LambTwin
from tests.references.lars import LarsTwin
from tests.references.merit import MeritTwin

TWINS = {LAMB: LambTwin, LARS: LarsTwin, MERIT: MeritTwin}
ADAM = {"lr": 0.03, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.0}
BASE = {LAMB: ADAM, LARS: {"lr": 5.0, "momentum": 0.9, "weight_decay": 0.0}, MERIT: ADAM}
VARIANTS = {
    LAMB: {
        "default": {},
        "weight decay": {"weight_decay": 0.1},
        "no bias correction": {"bias_correction": False, "weight_decay": 0.1},
        "phi from below": {"gamma_l": 0.8},
        "phi from above": {"gamma_u": 0.5},
        "phi": {"gamma_l": 0.5, "gamma_u": 1.0},
        "BERT exclusions": {"ratio_from_ndim": 2, "decay_from_ndim": 2, "weight_decay": 0.1},
    },
    LARS: {
        "paper": {},
        "paper, weight decay": {"weight_decay": 0.1},
        "coefficient": {"trust_coefficient": 0.01, "weight_decay": 0.1},
        "no momentum": {"momentum": 0.0},
        "vision exclusions": {"ratio_from_ndim": 2, "decay_from_ndim": 2, "weight_decay": 0.1, "lr": 0.5},
    },
    MERIT: {
        "released code": {},
        "weight decay": {"weight_decay": 0.1},
        "paper": {"variant": "paper", "weight_decay": 0.1},
        "paper, no lower bound": {"variant": "paper", "lower_bound": False},
        "no clip": {"clip": None},
        "other clip": {"clip": 0.1},
        "no lower bound": {"lower_bound": False, "weight_decay": 0.1},
        "max-norm LAMB": {"elementwise": False, "clip": None},
        "l2 ratios": {"norm": "l2", "weight_decay": 0.1},
        "l2 ratios, paper": {"norm": "l2", "variant": "paper"},
        "bias correction": {"bias_correction": True},
        "no ratio for vectors": {"ratio_from_ndim": 2, "decay_from_ndim": 2, "weight_decay": 0.1},
    },
}
EVERY = pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(kind, name, id=f"{kind.__name__} {name}") for kind in TWINS for name in VARIANTS[kind]],
)


@pytest.mark.parametrize("foreach", [None, False])
@EVERY
def test_agrees_with_the_twin_in_float64(kind, name, foreach):
    fast, slow = beside_twin(kind, TWINS[kind], torch.float64, {**BASE[kind], **VARIANTS[kind][name]}, foreach=foreach)
    # Only the order of rounding differs: 8 steps of a few ulp each, far below 1e-9.
    assert_agrees(fast, slow, rtol=1e-9, atol=1e-12)


ADAMW = {"betas": (0.8, 0.95), "eps": 1e-6}


@pytest.mark.parametrize(
    ("kind", "plain", "options"),
    [
        (LAMB, torch.optim.AdamW, ADAMW | {"weight_decay": 0.0}),
        # d + weight_decay * w with a unit ratio moves by lr * weight_decay * w: exactly AdamW's decoupled decay.
        (LAMB, torch.optim.AdamW, ADAMW | {"weight_decay": 0.1}),
        # With a constant learning rate it does not matter on which side of the buffer it is.
        (LARS, torch.optim.SGD, {"momentum": 0.8, "weight_decay": 0.1}),
    ],
)
def test_without_ratio_it_is_a_plain_optimizer(kind, plain, options):
    ends = []
    for each, more in ((kind, {"ratio_from_ndim": 9}), (plain, {})):
        params = [nn.Parameter(torch.tensor(start)) for start in starts(5)]
        optimizer = each(params, lr=0.01, **options, **more)
        for step in range(STEPS):
            for param, gradient in zip(params, gradients(6, step), strict=True):
                param.grad = torch.tensor(gradient)
            optimizer.step()
        ends.append([param.detach() for param in params])
    # Same formula, other order of rounding.
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-13)


def test_a_learning_rate_of_lars_stays_with_the_gradients_it_was_set_for():
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = LARS([weight], lr=1.0, momentum=0.5)
    weight.grad = torch.ones(4, dtype=torch.float64)
    optimizer.step()
    moved = 1.0 - weight[0].item()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert 1.0 - weight[0].item() == pytest.approx(1.5 * moved, rel=1e-12)


def test_a_zero_entry_stays_where_the_ratio_of_merit_overflows():
    for shape in ((2, 2), (2**10, 2**9)):
        weight = nn.Parameter(torch.full(shape, 0.5))
        weight.grad = torch.ones(shape)
        weight.grad[0], weight.grad[0, 0] = 0.0, 1e-40
        MERIT([weight], lr=0.01, betas=(0.0, 0.0), eps=1.0).step()
        assert torch.isfinite(weight).all()
        assert weight[0, 1] == 0.5
