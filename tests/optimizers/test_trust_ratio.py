"""MERIT and LAMB against their slow twins, what they reduce to, and what they share."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.optimizers import LAMB, MERIT
from cbs.optimizers.trust_ratio import Bucket, TrustRatioOptimizer
from tests.references.lamb import LambTwin
from tests.references.merit import MeritTwin

TWINS = [pytest.param(MERIT, MeritTwin, id="merit"), pytest.param(LAMB, LambTwin, id="lamb")]
BOTH = pytest.mark.parametrize("optimizer_class", [MERIT, LAMB])
SHAPES = [(5, 3), (3, 5), (5, 3), (1, 4), (4, 1), (6,), (6,), (1,), (), (4, 3, 2), (3, 2, 2, 3), (4, 3, 2)]
STEPS = 20


def starts(seed: int) -> list[np.ndarray]:
    """One start for each shape, some with zero rows, zero columns, or nothing but zeros."""
    draw = np.random.default_rng(seed)
    arrays = [np.asarray(draw.normal(size=shape) * 0.3) for shape in SHAPES]
    arrays[0][2] = 0.0
    arrays[1][:, 1] = 0.0
    arrays[2][:] = 0.0
    arrays[6][:] = 0.0
    arrays[9][1, :, 0] = 0.0
    return arrays


def gradients(seed: int, step: int) -> list[np.ndarray]:
    """Gradients of widely different sizes; a row, a column, a slice and a whole vector are always 0."""
    draw = np.random.default_rng([seed, step])
    arrays = [np.asarray(draw.normal(size=shape) * 10.0 ** draw.integers(-4, 1)) for shape in SHAPES]
    arrays[0][0] = 0.0
    arrays[1][:, 3] = 0.0
    arrays[5][:] = 0.0
    arrays[10][:, 1, 0, 2] = 0.0
    return arrays


def run_both(
    optimizer_class, twin_class, dtype: torch.dtype, weight_decay: float
) -> tuple[list[Tensor], list[np.ndarray]]:
    settings = {"lr": 0.03, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": weight_decay}
    params = [nn.Parameter(torch.tensor(start, dtype=dtype)) for start in starts(1)]
    twins = [twin_class(start, **settings) for start in starts(1)]
    optimizer = optimizer_class(params, **settings)
    for step in range(STEPS):
        for param, twin, gradient in zip(params, twins, gradients(2, step), strict=True):
            param.grad = torch.tensor(gradient, dtype=dtype)
            twin.step(gradient)
        optimizer.step()
    return [param.detach() for param in params], [twin.w for twin in twins]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("optimizer_class", "twin_class"), TWINS)
def test_agrees_with_the_twin_in_float64(optimizer_class, twin_class, weight_decay: float) -> None:
    fast, slow = run_both(optimizer_class, twin_class, torch.float64, weight_decay)
    for param, twin in zip(fast, slow, strict=True):
        # Only the order of rounding differs: 20 steps of a few ulp each, far below 1e-9.
        np.testing.assert_allclose(param.numpy(), twin, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("optimizer_class", "twin_class"), TWINS)
def test_agrees_with_the_twin_in_float32(optimizer_class, twin_class) -> None:
    fast, slow = run_both(optimizer_class, twin_class, torch.float32, 0.1)
    for param, twin in zip(fast, slow, strict=True):
        # Weights are of order 0.3 and each of 20 steps rounds at 6e-8 relative; ratios amplify that by up to ~10.
        np.testing.assert_allclose(param.numpy(), twin, rtol=2e-5, atol=2e-6)


@BOTH
def test_large_tensors_are_updated_like_small_ones(optimizer_class, monkeypatch: pytest.MonkeyPatch) -> None:
    together, _ = run_both(optimizer_class, MeritTwin, torch.float64, 0.1)
    monkeypatch.setattr("cbs.optimizers.trust_ratio._SMALL", 0)
    alone, _ = run_both(optimizer_class, MeritTwin, torch.float64, 0.1)
    for one, other in zip(together, alone, strict=True):
        # Sums of squares of a bucket's slice and of a tensor of its own may be added in another order.
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_merit_moves_no_entry_further_than_lr() -> None:
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


def test_merit_moves_an_all_zero_row_by_its_direction() -> None:
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


def test_merit_keeps_a_zero_entry_where_the_ratio_overflows() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = MERIT([weight], lr=0.01, betas=(0.0, 0.0), eps=1.0)
    weight.grad = torch.tensor([[1e-40, 0.0], [1.0, 1.0]])
    optimizer.step()
    assert torch.isfinite(weight).all()
    assert weight[0, 1] == 1.0


@BOTH
def test_a_gradient_that_is_not_finite_is_not_hidden(optimizer_class) -> None:
    weight = nn.Parameter(torch.ones(3, 3))
    optimizer = optimizer_class([weight])
    weight.grad = torch.zeros(3, 3)
    weight.grad[1, 1] = torch.nan
    optimizer.step()
    assert torch.isnan(weight[1, 1])


def test_lamb_changes_every_tensor_by_lr_of_its_norm() -> None:
    params = [nn.Parameter(torch.tensor(start)) for start in starts(3)]
    before = [param.detach().clone() for param in params]
    for param, gradient in zip(params, gradients(4, 0), strict=True):
        param.grad = torch.tensor(gradient)
    LAMB(params, lr=0.02).step()
    for param, start in zip(params, before, strict=True):
        if start.norm() > 0 and param.grad.norm() > 0:
            # Rounding only.
            torch.testing.assert_close((param.detach() - start).norm(), 0.02 * start.norm(), rtol=1e-10, atol=0.0)


class UnscaledLamb(LAMB):
    def rescale(self, weight: Tensor, direction: Tensor, bucket: Bucket) -> Tensor:
        return direction


class UnscaledMerit(MERIT):
    def rescale(self, weight: Tensor, direction: Tensor, bucket: Bucket) -> Tensor:
        return direction


def trained(optimizer_class: type[TrustRatioOptimizer] | type[torch.optim.Adam], **options) -> list[Tensor]:
    params = [nn.Parameter(torch.tensor(start)) for start in starts(5)]
    optimizer = optimizer_class(params, lr=0.01, betas=(0.8, 0.95), **options)
    for step in range(STEPS):
        for param, gradient in zip(params, gradients(6, step), strict=True):
            param.grad = torch.tensor(gradient)
        optimizer.step()
    return [param.detach() for param in params]


def test_lamb_with_unit_ratio_is_adam() -> None:
    ours, theirs = trained(UnscaledLamb, eps=1e-6), trained(torch.optim.Adam, eps=1e-6)
    # Same formula, other order of rounding.
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


def test_lamb_with_unit_ratio_and_decay_is_adamw() -> None:
    ours = trained(UnscaledLamb, eps=1e-6, weight_decay=0.1)
    # d + weight_decay * w with a unit ratio moves by lr * weight_decay * w: exactly AdamW's decoupled decay.
    theirs = trained(torch.optim.AdamW, eps=1e-6, weight_decay=0.1)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


def test_merit_with_unit_ratio_is_adam_without_bias_correction() -> None:
    expected = []
    for position, start in enumerate(starts(5)):
        m, v, w = np.zeros_like(start), np.zeros_like(start), start
        for step in range(STEPS):
            g = gradients(6, step)[position]
            m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
            w = w - 0.01 * m / (np.sqrt(v) + 1e-6)
        expected.append(torch.tensor(w))
    torch.testing.assert_close(trained(UnscaledMerit, eps=1e-6), expected, rtol=1e-10, atol=1e-13)


@BOTH
def test_first_step_from_zero_is_adams(optimizer_class) -> None:
    weight = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    weight.grad = torch.tensor([[1.0, -2.0], [3.0, 0.5], [0.0, 1.0]], dtype=torch.float64)
    optimizer_class([weight], lr=0.1, betas=(0.0, 0.0), eps=1e-6).step()
    torch.testing.assert_close(weight.detach(), -0.1 * weight.grad / (weight.grad.abs() + 1e-6), rtol=1e-12, atol=0.0)


@BOTH
def test_bfloat16_weights_have_float32_moments_that_survive_a_checkpoint(optimizer_class) -> None:
    def steps(params: list[nn.Parameter], optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
        for step in range(first, first + count):
            for param, gradient in zip(params, gradients(8, step), strict=True):
                param.grad = torch.tensor(gradient, dtype=torch.bfloat16)
            optimizer.step()

    params = [nn.Parameter(torch.tensor(start, dtype=torch.bfloat16)) for start in starts(7)]
    optimizer = optimizer_class(params, lr=0.03)
    steps(params, optimizer, 0, 5)
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.float32}
    copies = [nn.Parameter(param.detach().clone()) for param in params]
    resumed = optimizer_class(copies, lr=0.5)
    resumed.load_state_dict(optimizer.state_dict())
    steps(params, optimizer, 5, 5)
    steps(copies, resumed, 5, 5)
    for param, other in zip(params, copies, strict=True):
        assert param.dtype is torch.bfloat16
        assert torch.equal(param, other)


@BOTH
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


@BOTH
def test_groups_keep_their_own_options(optimizer_class) -> None:
    slow, fast = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer = optimizer_class([{"params": [slow], "lr": 0.0}, {"params": [fast]}], lr=0.1)
    slow.grad = fast.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(slow, torch.ones(2, 2))
    assert not torch.equal(fast, torch.ones(2, 2))


@BOTH
def test_closure_is_evaluated_with_gradients_and_its_loss_returned(optimizer_class) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = optimizer_class([weight], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 2.0
    assert (weight < 1).all()


@BOTH
def test_deep_copy_goes_its_own_way(optimizer_class) -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = optimizer_class([weight], lr=0.1)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    kept = optimizer.state[weight]["exp_avg"].clone()
    twin = copy.deepcopy(optimizer)
    twin.param_groups[0]["params"][0].grad = torch.ones(2, 2)
    twin.step()
    assert torch.equal(optimizer.state[weight]["exp_avg"], kept)


@BOTH
def test_sparse_gradients_are_refused(optimizer_class) -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = optimizer_class(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=f"{optimizer_class.__name__} needs dense gradients"):
        optimizer.step()


@BOTH
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be finite and at least 0, got -1.0"),
        ({"lr": float("nan")}, "lr must be finite"),
        ({"betas": (0.9, 1.0)}, "betas must be two numbers in"),
        ({"betas": (0.9,)}, "betas must be two numbers in"),
        ({"eps": -1e-8}, "eps must be"),
        ({"weight_decay": -0.1}, "weight_decay must be"),
    ],
)
def test_values_outside_their_domain_are_refused(optimizer_class, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optimizer_class([nn.Parameter(torch.ones(1))], **options)


@BOTH
def test_empty_tensors_and_channels_last_kernels_are_fine(optimizer_class) -> None:
    torch.manual_seed(0)
    plain = nn.Parameter(torch.randn(4, 3, 2, 2, dtype=torch.float64))
    strided = nn.Parameter(plain.detach().clone().to(memory_format=torch.channels_last))
    empty = nn.Parameter(torch.empty(0, 3, dtype=torch.float64))
    optimizer = optimizer_class([plain, empty]), optimizer_class([strided])
    for _ in range(3):
        plain.grad = torch.randn(4, 3, 2, 2, dtype=torch.float64)
        strided.grad = plain.grad.to(memory_format=torch.channels_last)
        empty.grad = torch.empty_like(empty)
        for one in optimizer:
            one.step()
    torch.testing.assert_close(plain, strided, rtol=1e-13, atol=0.0)
