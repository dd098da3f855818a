"""The state of LAMB, LARS and MERIT is ``optimizer.state``, and what changes under them is refused or followed."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.optimizers import LAMB, MERIT
from cbs.optimizers.lars import LARS

ALL = pytest.mark.parametrize("optimizer_class", [MERIT, LAMB, LARS])
NAMES = {MERIT: "exp_avg", LAMB: "exp_avg", LARS: "momentum_buffer"}
SHAPES = [(8, 4), (4,), (), (3, 2, 2), (300, 300)]


def parameters() -> list[nn.Parameter]:
    """Some that are updated together, and one that is updated alone."""
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]


def step(params: list[nn.Parameter], optimizer: Any, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = torch.randn(param.shape, generator=draw).to(param.dtype)
    optimizer.step()


def started(optimizer_class: Any, **options: Any) -> tuple[list[nn.Parameter], Any]:
    params = parameters()
    optimizer = optimizer_class(params, lr=0.01, **options)
    step(params, optimizer, 1)
    return params, optimizer


def values(params: list[nn.Parameter]) -> list[Tensor]:
    return [param.detach().clone() for param in params]


@ALL
@pytest.mark.parametrize("index", [0, 4])
def test_state_that_is_put_there_is_used_and_kept(optimizer_class: Any, index: int) -> None:
    (params, optimizer), (others, twin) = started(optimizer_class), started(optimizer_class)
    given, name = torch.full(SHAPES[index], 5.0), NAMES[optimizer_class]
    optimizer.state[params[index]][name] = given
    twin.state[others[index]][name].fill_(5.0)
    step(params, optimizer, 2)
    step(others, twin, 2)
    torch.testing.assert_close(values(params), values(others), rtol=0, atol=0)
    assert optimizer.state[params[index]][name] is given
    assert (given != 5.0).any()


@ALL
@pytest.mark.parametrize("index", [0, 4])
def test_weights_of_another_precision_go_on(optimizer_class: Any, index: int) -> None:
    (params, optimizer), (others, twin) = started(optimizer_class), started(optimizer_class)
    for param in (params[index], others[index]):
        param.data = param.data.bfloat16()
    others[index].data = others[index].data.float()
    step(params, optimizer, 2)
    step(others, twin, 2)
    assert params[index].dtype is torch.bfloat16
    # One rounding to 8 bits.
    torch.testing.assert_close(params[index].float(), others[index].data, rtol=2**-7, atol=2**-7)


@ALL
@pytest.mark.parametrize("index", [0, 4])
def test_gradients_of_another_precision_are_taken_for_what_they_are(optimizer_class: Any, index: int) -> None:
    (params, optimizer), (others, twin) = started(optimizer_class), started(optimizer_class)
    params[index].grad.data = params[index].grad.data.bfloat16()  # type: ignore[union-attr]
    others[index].grad = params[index].grad.float()  # type: ignore[union-attr]
    optimizer.step()
    twin.step()
    torch.testing.assert_close(values(params), values(others), rtol=0, atol=0)


@pytest.mark.parametrize("optimizer_class", [MERIT, LAMB])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_every_parameter_counts_its_own_steps(optimizer_class: Any, bias_correction: bool) -> None:
    params, optimizer = started(optimizer_class, bias_correction=bias_correction)
    alone = [nn.Parameter(value) for value in values(params)]
    optimizer.state[params[1]]["step"] = 7
    optimizer.state[params[4]]["step"] += 2.0
    each = [optimizer_class([param], lr=0.01, bias_correction=bias_correction) for param in alone]
    for one, param, source in zip(each, alone, params, strict=True):
        one.state[param] = copy.deepcopy(optimizer.state[source])
    step(params, optimizer, 2)
    for param, source, one in zip(alone, params, each, strict=True):
        param.grad = source.grad
        one.step()
    # The same arithmetic on slices of longer vectors; vectorised loops may round their tails differently.
    torch.testing.assert_close(values(params), values(alone), rtol=1e-6, atol=1e-7)
    assert [float(optimizer.state[param]["step"]) for param in params] == [2.0, 8.0, 2.0, 2.0, 4.0]
