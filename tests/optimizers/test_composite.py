"""Several optimizers behave as one: shared groups, shared state, one state dict."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from cbs.optimizers import MERIT, CompositeOptimizer


def pair() -> tuple[list[nn.Parameter], CompositeOptimizer]:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(3, 2)) for _ in range(3)]
    groups = [{"params": params[:1]}, {"params": params[1:2], "lr": 0.2}]
    return params, CompositeOptimizer([torch.optim.AdamW(groups, lr=0.1), MERIT(params[2:], lr=0.01)])


def step(params: list[nn.Parameter], optimizer: torch.optim.Optimizer, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, generator=draw)
    optimizer.step()


def same_groups(optimizer: CompositeOptimizer) -> bool:
    inner = [group for part in optimizer.optimizers for group in part.param_groups]
    return len(inner) == len(optimizer.param_groups) and all(
        one is other for one, other in zip(inner, optimizer.param_groups, strict=True)
    )


def test_steps_like_its_parts() -> None:
    params, composite = pair()
    others = [nn.Parameter(param.detach().clone()) for param in params]
    adamw = torch.optim.AdamW([{"params": others[:1]}, {"params": others[1:2], "lr": 0.2}], lr=0.1)
    merit = MERIT(others[2:], lr=0.01)
    for seed in range(4):
        step(params, composite, seed)
        draw = torch.Generator().manual_seed(seed)
        for other in others:
            other.grad = torch.randn(other.shape, generator=draw)
        adamw.step()
        merit.step()
    for param, other in zip(params, others, strict=True):
        assert torch.equal(param, other)


def test_learning_rate_set_on_its_groups_reaches_the_parts_before_and_after_loading() -> None:
    params, composite = pair()
    assert [group["lr"] for group in composite.param_groups] == [0.1, 0.2, 0.01]
    assert same_groups(composite)
    step(params, composite, 0)
    composite.load_state_dict(copy.deepcopy(composite.state_dict()))
    assert same_groups(composite)
    before = [param.detach().clone() for param in params]
    for group in composite.param_groups:
        group["lr"] = 0.0
    step(params, composite, 1)
    for param, start in zip(params, before, strict=True):
        assert torch.equal(param, start)


def test_state_dict_restores_every_part_bitwise() -> None:
    params, composite = pair()
    for seed in range(3):
        step(params, composite, seed)
    saved = copy.deepcopy(composite.state_dict())
    assert sorted(saved["state"]) == [0, 1, 2]
    others, resumed = pair()
    with torch.no_grad():
        for other, param in zip(others, params, strict=True):
            other.copy_(param)
    resumed.load_state_dict(saved)
    for seed in range(3, 6):
        step(params, composite, seed)
        step(others, resumed, seed)
    for param, other in zip(params, others, strict=True):
        assert torch.equal(param, other)


def test_keeps_state_the_parts_already_have() -> None:
    params, _ = pair()
    adamw = torch.optim.AdamW(params[:2])
    step(params, adamw, 0)
    composite = CompositeOptimizer([adamw, MERIT(params[2:])])
    step(params, composite, 1)
    assert composite.state[params[0]]["step"] == 2


def test_closure_is_evaluated_once() -> None:
    params, composite = pair()
    calls = []

    def closure() -> Tensor:
        calls.append(1)
        composite.zero_grad()
        loss = sum((param**2).sum() for param in params)
        loss.backward()
        return loss

    assert composite.step(closure) > 0
    assert len(calls) == 1


def test_zero_grad_and_schedulers_work() -> None:
    params, composite = pair()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(composite, gamma=0.5)
    step(params, composite, 0)
    scheduler.step()
    assert [part.param_groups[0]["lr"] for part in composite.optimizers] == [0.05, 0.005]
    composite.zero_grad()
    assert all(param.grad is None for param in params)


def test_deep_copy_is_independent() -> None:
    params, composite = pair()
    step(params, composite, 0)
    twin = copy.deepcopy(composite)
    assert same_groups(twin)
    before = [param.detach().clone() for param in params]
    step([param for group in twin.param_groups for param in group["params"]], twin, 1)
    for param, start in zip(params, before, strict=True):
        assert torch.equal(param, start)


def test_refuses_new_groups_shared_parameters_and_nothing() -> None:
    params, composite = pair()
    with pytest.raises(RuntimeError, match="takes no new parameters"):
        composite.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(ValueError, match="more than one parameter group"):
        CompositeOptimizer([torch.optim.SGD(params, lr=0.1), torch.optim.AdamW(params[:1])])
    with pytest.raises(ValueError, match="empty parameter list"):
        CompositeOptimizer([])
