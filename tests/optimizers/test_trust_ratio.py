"""What LAMB, LARS and MERIT share: blocks, state, precision, memory, and steps without waiting."""

from typing import Any

import pytest
import torch
from torch import nn

from cbs.optimizers import LAMB, MERIT
from cbs.optimizers.lars import LARS
from cbs.optimizers.trust_ratio.blocks import Extent
from tests.optimizers.trust_ratios import gradients, run, starts

ALL = pytest.mark.parametrize("optimizer_class", [MERIT, LAMB, LARS])
RATES = {MERIT: 0.03, LAMB: 0.03, LARS: 5.0}


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is updated alone."""
    monkeypatch.setattr("cbs.optimizers.trust_ratio.blocks.CPU", Extent(small=0, shared=4, tile=8))


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        *((kind, {"lr": lr}) for kind, lr in RATES.items()),
        *((kind, {"ratio_from_ndim": 2, "weight_decay": 0.1, "lr": lr}) for kind, lr in RATES.items()),
        *((kind, {"decay_from_ndim": 2, "weight_decay": 0.1, "lr": lr}) for kind, lr in RATES.items()),
        *(
            (MERIT, options)
            for options in ({"variant": "paper"}, {"norm": "l2"}, {"elementwise": False}, {"clip": None})
        ),
        (LARS, {"weight_decay": 0.1, "lr": 0.1}),
    ],
)
def test_tensors_updated_together_come_out_as_alone(optimizer_class: Any, options: dict, request: Any) -> None:
    together = run(optimizer_class, torch.float64, **options)
    request.getfixturevalue("apart")
    alone = run(optimizer_class, torch.float64, **options)
    torch.testing.assert_close(alone, together, rtol=1e-10, atol=1e-13)


@ALL
def test_lowest_precision_follows_the_float64_run(optimizer_class: Any) -> None:
    exact = run(optimizer_class, torch.float64, lr=RATES[optimizer_class])
    rough = run(optimizer_class, torch.bfloat16, lr=RATES[optimizer_class])
    for one, other in zip(exact, rough, strict=True):
        # Eight roundings of a weight of size up to 6 to 8 bits.
        assert (one - other).abs().max() <= 8 * 2**-8 * (one.abs().max() + 0.1)


@ALL
def test_parameters_without_gradient_are_skipped_and_count_no_steps(optimizer_class) -> None:
    torch.manual_seed(0)
    first, second = (nn.Parameter(torch.randn(3, 3, dtype=torch.float64)) for _ in range(2))
    alone = nn.Parameter(second.detach().clone())
    both, single = optimizer_class([first, second]), optimizer_class([alone])
    start = second.detach().clone()
    # First alone, then second alone, then both: the number of gradients does not tell who has one.
    for step in range(9):
        first.grad = torch.randn(3, 3, dtype=torch.float64) if step % 3 != 1 else None
        second.grad = alone.grad = torch.randn(3, 3, dtype=torch.float64) if step % 3 != 0 else None
        both.step()
        single.step()
        assert step > 0 or torch.equal(second, start)
    # The same arithmetic on slices of longer vectors; vectorised loops may round their tails differently.
    torch.testing.assert_close(second, alone, rtol=1e-13, atol=0.0)


@ALL
def test_bfloat16_weights_have_float32_state_that_survive_a_checkpoint(optimizer_class) -> None:
    def steps(params: list[nn.Parameter], optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
        for step in range(first, first + count):
            for param, gradient in zip(params, gradients(8, step), strict=True):
                param.grad = torch.tensor(gradient, dtype=torch.bfloat16)
            optimizer.step()

    params = [nn.Parameter(torch.tensor(start, dtype=torch.bfloat16)) for start in starts(7)]
    optimizer = optimizer_class(params, lr=0.03)
    steps(params, optimizer, 0, 5)
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {torch.float32}
    copies = [nn.Parameter(param.detach().clone()) for param in params]
    resumed = optimizer_class(copies, lr=0.5)
    resumed.load_state_dict(optimizer.state_dict())
    steps(params, optimizer, 5, 5)
    steps(copies, resumed, 5, 5)
    for param, other in zip(params, copies, strict=True):
        assert param.dtype is torch.bfloat16
        assert torch.equal(param, other)


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        (RATES, {"lr": -1.0}, "lr must be finite and at least 0, got -1.0"),
        (RATES, {"ratio_from_ndim": -1}, "ratio_from_ndim must be a whole number of at least 0, got -1"),
        (RATES, {"decay_from_ndim": 0.5}, "decay_from_ndim must be a whole number"),
        ([MERIT, LAMB], {"betas": (0.9, 1.0)}, "betas must be two numbers in"),
        ([MERIT, LAMB], {"betas": (0.9,)}, "betas must be two numbers in"),
        ([MERIT, LAMB], {"eps": -1e-8}, "eps must be"),
        ([LARS], {"momentum": 1.0}, "momentum must be in"),
        ([LARS], {"trust_coefficient": -1.0}, "trust_coefficient must be finite and at least 0, got -1.0"),
        ([LAMB], {"gamma_l": -1.0}, "gamma_l must be finite and at least 0, got -1.0"),
        ([LAMB], {"gamma_l": 1.0, "gamma_u": 0.5}, "gamma_u must be None or at least gamma_l = 1.0, got 0.5"),
        ([MERIT], {"clip": 0.0}, "clip must be None or above 0, got 0.0"),
        ([MERIT], {"variant": "other"}, "variant must be one of code, paper, got 'other'"),
        ([MERIT], {"norm": "l1"}, "norm must be one of max, l2, got 'l1'"),
        ([MERIT], {"elementwise": False, "lower_bound": False}, "leaves no ratio"),
    ],
)
def test_values_outside_their_domain_are_refused(kinds: Any, options: dict, message: str) -> None:
    for kind in kinds:
        with pytest.raises(ValueError, match=message):
            kind([nn.Parameter(torch.ones(1))], **options)
