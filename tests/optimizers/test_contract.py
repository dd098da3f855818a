"""What every class of our own owes to torch.optim: checks at construction, state that loads, copies."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.optimizers.base import OPTIMIZERS, signature_options
from cbs.optimizers.contract import CheckedOptimizer
from cbs.optimizers.muon import Muon

OPTIMIZERS.names()  # imports those of extensions
EVERY = pytest.mark.parametrize("kind", [Muon, *Muon.__subclasses__()])


def matrices(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((3, 4), (4, 3), (4, 4))]


def step(params: list[nn.Parameter], optimizer: torch.optim.Optimizer, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, generator=draw).to(param.dtype)
    optimizer.step()


def assert_equal(params: list[nn.Parameter], others: list[nn.Parameter]) -> None:
    for param, other in zip(params, others, strict=True):
        assert torch.equal(param, other)


@EVERY
def test_a_misspelt_option_is_refused_everywhere(kind: type) -> None:
    with pytest.raises(TypeError, match="momentun"):
        kind(matrices(), momentun=0.5)
    with pytest.raises(ValueError, match="no option 'momentun'; did you mean 'momentum'"):
        kind([{"params": matrices(), "momentun": 0.5}])
    optimizer = kind(matrices())
    with pytest.raises(ValueError, match="no option 'momentun'"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, 2))], "momentun": 0.5})
    assert len(optimizer.param_groups) == 1


@EVERY
def test_what_cannot_be_optimized_is_refused_and_leaves_no_group(kind: type) -> None:
    with pytest.raises(ValueError, match=r"takes real parameters, got one of type torch\.complex64"):
        kind([nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))])
    optimizer = kind(matrices())
    with pytest.raises(ValueError, match="takes real parameters"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))]})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ValueError, match="lr must be a number or a tensor of one element"):
        kind(matrices(), lr=torch.ones(2))


@EVERY
def test_a_state_dict_is_the_same_again_after_loading_pickling_and_copying(kind: type) -> None:
    params = matrices()
    optimizer = kind(params)
    step(params, optimizer, 0)
    before = [set(group) for group in optimizer.param_groups]
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(copy.deepcopy(state))
    for other in (optimizer, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        other.load_state_dict(copy.deepcopy(state))
        assert [set(group) for group in other.param_groups] == before
        assert other.defaults == kind(matrices()).defaults
        copies = [param for group in other.param_groups for param in group["params"]]
        step(copies, other, 1)
    assert_equal(params, copies)


@EVERY
def test_named_parameters_in_another_order_are_refused(kind: type) -> None:
    """Of one shape, so that nothing else tells."""
    named = [(name, nn.Parameter(torch.ones(3, 3))) for name in ("query", "key", "value")]
    one = kind(named)
    step([param for _, param in named], one, 0)
    again = kind([named[1], named[0], named[2]])
    with pytest.raises(ValueError, match="in another order, 'query' where 'key' is here"):
        again.load_state_dict(one.state_dict())
    assert not again.state
    kind([(f"other.{name}", param) for name, param in named]).load_state_dict(one.state_dict())
    kind([param for _, param in named]).load_state_dict(one.state_dict())

    def reordered(_: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        (group,) = saved["param_groups"]
        group = {**group, "params": [1, 0, 2], "param_names": ["key", "query", "value"]}
        return {**saved, "param_groups": [group]}

    again.register_load_state_dict_pre_hook(reordered)
    again.load_state_dict(one.state_dict())
    for _, param in named:
        assert torch.equal(again.state[param]["momentum_buffer"], one.state[param]["momentum_buffer"])


@EVERY
def test_state_of_another_shape_is_refused(kind: type) -> None:
    few, many = [nn.Parameter(torch.ones(1, 4))], [nn.Parameter(torch.ones(3, 4))]
    one, other = kind(many), kind(few)
    step(many, one, 0)
    other.load_state_dict(one.state_dict())
    with pytest.raises(RuntimeError, match=r"the momentum_buffer \(\[3, 4\], .*does not fit its parameter \(\[1, 4\]"):
        step(few, other, 1)


@EVERY
def test_options_of_the_iteration_are_those_given(kind: type) -> None:
    given = {"orthogonalization": "svd", "ns_steps": 3, "ns_coefficients": (1.5, -0.5, 0.0), "ns_dtype": "bfloat16"}
    optimizer = kind(matrices(), momentum=0.5, **given)
    assert optimizer.defaults | given | {"momentum": 0.5} == optimizer.defaults
    assert optimizer.defaults.keys() == signature_options(kind).keys() | {"lr", "layout"}


DTYPES = pytest.mark.parametrize(
    ("earlier", "later"), [(torch.float64, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.bfloat16,) * 2]
)


@EVERY
def test_keys_of_the_user_are_kept_as_torch_keeps_them(kind: type) -> None:
    theirs = {"weight_decay_mult": 0.5, "weight_decay_scale": 0.5, "momentum_warmup": 3, "lr_mult": 0.1, "name": "a"}
    group = kind([{"params": matrices(), **theirs}]).param_groups[0]
    assert {name: group[name] for name in theirs} == theirs
    for misspelt in ("wieght_decay", "weight_decy", "weightdecay"):
        with pytest.raises(ValueError, match="did you mean 'weight_decay'"):
            kind([{"params": matrices(), misspelt: 0.5}])


@EVERY
def test_a_group_that_is_to_be_maximized_is_refused(kind: type) -> None:
    kind([{"params": matrices(), "maximize": False}])
    with pytest.raises(ValueError, match="minimizes; negate the loss"):
        kind([{"params": matrices(), "maximize": True}])


@EVERY
@DTYPES
def test_state_of_another_precision_is_taken_over(kind: type, earlier: torch.dtype, later: torch.dtype) -> None:
    params, others = matrices(earlier), matrices(later)
    optimizer, resumed = kind(params), kind(others)
    step(params, optimizer, 0)
    resumed.load_state_dict(optimizer.state_dict())
    step(others, resumed, 1)
    kept = {value.dtype for state in resumed.state.values() for value in state.values() if isinstance(value, Tensor)}
    assert kept == {torch.float32 if later is torch.bfloat16 else later}
    assert all(param.dtype is later and param.isfinite().all() for param in others)


@EVERY
def test_what_a_load_hook_returns_is_what_is_loaded(kind: type) -> None:
    params, others = matrices(torch.bfloat16), matrices(torch.bfloat16)
    optimizer, resumed = kind(params), kind(others[::-1])
    step(params, optimizer, 0)

    def reordered(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        (group,) = state["param_groups"]
        return {"state": state["state"], "param_groups": [{**group, "params": group["params"][::-1]}]}

    resumed.register_load_state_dict_pre_hook(reordered)
    resumed.load_state_dict(optimizer.state_dict())
    for param, other in zip(params, others, strict=True):
        assert torch.equal(optimizer.state[param]["momentum_buffer"], resumed.state[other]["momentum_buffer"])
    with torch.no_grad():
        for param, other in zip(params, others, strict=True):
            other.copy_(param)
    step(params, optimizer, 1)
    step(others, resumed, 1)
    assert_equal(params, others)


def test_options_that_an_older_state_dict_lacks_stay_as_built() -> None:
    class Old(CheckedOptimizer):
        def __init__(self, params: list[nn.Parameter], lr: float = 0.1, *, decay: float = 0.5) -> None:
            super().__init__(params, locals())

    optimizer = Old(matrices(), decay=0.25)
    state = optimizer.state_dict()
    del state["param_groups"][0]["decay"]
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["decay"] == 0.25
    assert optimizer.defaults == {"lr": 0.1, "decay": 0.25}
