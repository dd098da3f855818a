"""Several optimizers behave as one: shared groups, shared state, one state dict."""

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cbs.optimizers import MERIT, CompositeOptimizer
from cbs.optimizers.muon import Muon


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


def test_refuses_shared_parameters_and_nothing() -> None:
    params, _ = pair()
    with pytest.raises(ValueError, match="more than one parameter group"):
        CompositeOptimizer([torch.optim.SGD(params, lr=0.1), torch.optim.AdamW(params[:1])])
    with pytest.raises(ValueError, match="empty parameter list"):
        CompositeOptimizer([])


@pytest.mark.parametrize("number", [0, 1])
def test_new_parameters_join_the_part_that_their_group_names(number: int) -> None:
    params, composite = muon_beside(torch.optim.AdamW)
    scheduled = composite.param_groups
    step(params, composite, 0)
    late = nn.Parameter(torch.ones(3, 2))
    alone = nn.Parameter(torch.ones(3, 2))
    part = [Muon([alone], 0.1), torch.optim.AdamW([alone], lr=0.02)][number]
    composite.add_param_group({"params": [late], "part": type(part).__name__, "lr": part.param_groups[0]["lr"]})
    assert composite.param_groups is scheduled
    assert composite.param_groups[-1]["params"] == [late]
    assert composite.param_groups[-1].keys() == composite.param_groups[number].keys()
    for seed in (1, 2):
        step([*params, late], composite, seed)
        alone.grad = late.grad.clone()
        part.step()
        composite.load_state_dict(copy.deepcopy(composite.state_dict()))
    assert torch.equal(late, alone)
    twin = copy.deepcopy(composite)
    copies = [param for group in twin.param_groups for param in group["params"]]
    for every, optimizer in ((copies, twin), ([*params, late], composite)):
        step(every, optimizer, 3)
    assert all(map(torch.equal, copies, [*params, late]))
    assert not torch.equal(late, alone)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({}, "with part=Muon or AdamW in their group, got None"),
        ({"part": "SGD"}, "with part=Muon or AdamW in their group, got SGD"),
        ({"part": "Muon", "params": nn.Parameter(torch.ones(3))}, "Muon takes matrices"),
        ({"part": "Muon", "momentun": 0.5}, "did you mean 'momentum'"),
        ({"part": "Muon", "lr": -1.0}, "lr must be finite and at least 0"),
        ({"part": "AdamW", "params": 1}, "more than one parameter group"),
        ({"part": "Muon", "params": 1}, "more than one parameter group"),
    ],
)
def test_new_parameters_that_are_refused_leave_all_as_it_was(group: dict[str, Any], words: str) -> None:
    params, composite = muon_beside(torch.optim.AdamW)
    before = composite.state_dict()["param_groups"]
    late = params[group["params"]] if isinstance(group.get("params"), int) else nn.Parameter(torch.ones(3, 2))
    with pytest.raises(ValueError, match=words) as caught:
        composite.add_param_group({"params": late, **{k: v for k, v in group.items() if not isinstance(v, int)}})
    assert "\n" not in str(caught.value)
    assert composite.state_dict()["param_groups"] == before
    assert same_groups(composite)
    step(params, composite, 0)


def muon_beside(build: Callable[..., torch.optim.Optimizer]) -> tuple[list[nn.Parameter], CompositeOptimizer]:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(3, 2)) for _ in range(2)]
    return params, CompositeOptimizer([Muon(params[:1], 0.1), build(params[1:], lr=0.1)])


def test_hooks_for_any_optimizer_run_once_per_step_and_those_of_a_part_with_it() -> None:
    params, composite = pair()
    seen: list[object] = []
    part = composite.optimizers[1]
    part.register_step_pre_hook(lambda optimizer, args, kwargs: seen.append(optimizer))
    part.register_step_post_hook(lambda optimizer, args, kwargs: seen.append(optimizer))
    handles = [
        register(lambda optimizer, args, kwargs: seen.append(optimizer))
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
    ]
    try:
        step(params, composite, 0)
    finally:
        for handle in handles:
            handle.remove()
    assert [id(optimizer) for optimizer in seen] == [id(composite), id(part), id(part), id(composite)]


def test_state_is_the_parts_whatever_it_is_set_to() -> None:
    params, composite = muon_beside(torch.optim.AdamW)
    step(params, composite, 0)
    composite.state = defaultdict(dict)
    assert all(part.state is composite.state for part in composite.optimizers)
    step(params, composite, 1)
    assert composite.state[params[1]]["step"] == 1
    assert set(composite.state_dict()["state"]) == {0, 1}
    composite.state.clear()
    step(params, composite, 2)
    assert composite.state[params[1]]["step"] == 1
    assert torch.equal(composite.state[params[0]]["momentum_buffer"], torch.zeros(3, 2).lerp(params[0].grad, 0.05))
    composite.param_groups = [{**group, "lr": 0.0} for group in composite.param_groups]
    assert same_groups(composite)
    before = [param.detach().clone() for param in params]
    step(params, composite, 3)
    for param, start in zip(params, before, strict=True):
        assert torch.equal(param, start)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_copies_and_pickles_go_on_by_themselves(duplicate: Callable) -> None:
    params, composite = muon_beside(torch.optim.AdamW)
    lr_scheduler.ExponentialLR(composite, gamma=0.5)
    step(params, composite, 0)
    twin = duplicate(composite)
    copies = [param for group in twin.param_groups for param in group["params"]]
    assert same_groups(twin)
    assert twin.defaults == composite.defaults
    assert all(part.state is twin.state for part in twin.optimizers)
    step(copies, twin, 1)
    step(params, composite, 1)
    for param, other in zip(params, copies, strict=True):
        assert param is not other
        assert torch.equal(param, other)
