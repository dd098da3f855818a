"""MERIT: its bounds, and what it reduces to."""

import pytest
import torch
from torch import nn

from cbs.optimizers import MERIT
from tests.optimizers.trust_ratios import STEPS, gradients, starts


def test_no_entry_moves_further_than_lr() -> None:
    torch.manual_seed(0)
    sizes = torch.logspace(-3, 3, 8, dtype=torch.float64)
    weight = nn.Parameter(torch.randn(8, 8, dtype=torch.float64) * sizes[:, None])
    optimizer = MERIT([weight], lr=0.01)
    before = weight.detach().clone()
    weight.grad = torch.randn(8, 8, dtype=torch.float64)
    optimizer.step()
    moved = (weight.detach() - before).abs()
    # Rounding of a weight of order 1e3 in float64.
    assert moved.max() <= 0.01 + 1e-12
    assert moved.max() >= 0.01 - 1e-12, "weights above 1 must reach the clip"


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_without_a_clip_the_largest_weight_bounds_every_move(norm: str) -> None:
    """The fact that lets a step pass over the clip where all weights are below it."""
    torch.manual_seed(1)
    weight = nn.Parameter(torch.randn(20, 30, dtype=torch.float64))
    optimizer = MERIT([weight], lr=0.01, clip=None, norm=norm)
    for _ in range(5):
        before = weight.detach().clone()
        weight.grad = torch.randn(20, 30, dtype=torch.float64) ** 5
        optimizer.step()
        bound = before.abs().max() if norm == "max" else before.norm()
        assert (weight.detach() - before).abs().max() <= 0.01 * bound * (1 + 1e-9)


def test_an_all_zero_row_moves_by_its_direction() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 5, dtype=torch.float64) * 100)
    with torch.no_grad():
        weight[1] = 0.0
    gradient = torch.randn(4, 5, dtype=torch.float64)
    optimizer = MERIT([weight], lr=0.01, betas=(0.9, 0.9), eps=1e-6)
    weight.grad = gradient
    optimizer.step()
    direction = 0.1 * gradient[1] / ((0.1 * gradient[1] ** 2).sqrt() + 1e-6)
    assert (direction.abs() < 1).all(), "the bound must not come from the clip alone"
    torch.testing.assert_close(weight.detach()[1], -0.01 * direction, rtol=1e-12, atol=0.0)


def test_an_all_zero_row_follows_the_other_ratios_in_the_paper() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.rand(4, 5, dtype=torch.float64) + 1.0)
    with torch.no_grad():
        weight[1] = 0.0
    weight.grad = torch.ones(4, 5, dtype=torch.float64)
    largest, columns = weight.detach().max(), weight.detach().amax(0)
    MERIT([weight], lr=0.01, betas=(0.0, 0.0), eps=0.0, variant="paper", clip=None).step()
    assert (columns <= largest).all()
    # All directions are 1, so s is the largest weight of the tensor.
    torch.testing.assert_close(weight.detach()[1], -0.01 * largest.expand(5), rtol=1e-12, atol=0.0)


def test_a_zero_entry_stays_where_the_ratio_overflows() -> None:
    for shape in ((2, 2), (2**10, 2**9)):
        weight = nn.Parameter(torch.full(shape, 0.5))
        weight.grad = torch.ones(shape)
        weight.grad[0], weight.grad[0, 0] = 0.0, 1e-40
        MERIT([weight], lr=0.01, betas=(0.0, 0.0), eps=1.0).step()
        assert torch.isfinite(weight).all()
        assert weight[0, 1] == 0.5


def test_with_unit_ratio_and_no_clip_it_is_adam_without_bias_correction() -> None:
    params = [nn.Parameter(torch.tensor(start)) for start in starts(5)]
    slow = [(torch.tensor(start), torch.zeros(start.shape), torch.zeros(start.shape)) for start in starts(5)]
    optimizer = MERIT(params, lr=0.01, betas=(0.8, 0.95), eps=1e-6, clip=None, ratio_from_ndim=9)
    for step in range(STEPS):
        for param, gradient in zip(params, gradients(6, step), strict=True):
            param.grad = torch.tensor(gradient)
        optimizer.step()
        moments = [
            (0.8 * m + 0.2 * p.grad, 0.95 * v + 0.05 * p.grad**2) for (_, m, v), p in zip(slow, params, strict=True)
        ]
        slow = [(w - 0.01 * m / (v.sqrt() + 1e-6), m, v) for (w, _, _), (m, v) in zip(slow, moments, strict=True)]
    # Same formula, other order of rounding.
    torch.testing.assert_close([p.detach() for p in params], [w for w, _, _ in slow], rtol=1e-10, atol=1e-13)
