"""Polar factors, and the methods built on them against their slow twins and what they reduce to."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.optimizers import build_optimizer, spectral
from cbs.optimizers.muon import Muon
from cbs.optimizers.spectral import fast_dtype
from cbs.trial.config import Choice
from tests.references.muon import MuonTwin

SHAPES = [(5, 3), (3, 5), (5, 3), (4, 4), (1, 4), (4, 1), (6, 9)]
STEPS = 20


def starts(seed: int) -> list[np.ndarray]:
    """One start for each shape; the third is 0, as output projections often are."""
    draw = np.random.default_rng(seed)
    arrays = [draw.normal(size=shape) * 0.3 for shape in SHAPES]
    arrays[2][:] = 0.0
    return arrays


def gradients(seed: int, step: int) -> list[np.ndarray]:
    """Gradients of widely different sizes; that of the fourth matrix is 0 in the first step."""
    draw = np.random.default_rng([seed, step])
    arrays = [draw.normal(size=shape) * 10.0 ** draw.integers(-4, 1) for shape in SHAPES]
    if step == 0:
        arrays[3][:] = 0.0
    return arrays


def assert_like_twins(build: Callable, twin: Callable) -> None:
    """20 steps in float64 within 1e-6, the agreement the project asks of its optimizers."""
    params = [nn.Parameter(torch.tensor(start)) for start in starts(1)]
    twins = [twin(start) for start in starts(1)]
    optimizer = build(params)
    for step in range(STEPS):
        for param, slow, gradient in zip(params, twins, gradients(2, step), strict=True):
            param.grad = torch.tensor(gradient)
            slow.step(gradient)
        optimizer.step()
    for param, slow in zip(params, twins, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), slow.w, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("orthogonalization", ["newton_schulz", "svd"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("lr_convention", ["match_rms_adamw", "original"])
def test_muon_agrees_with_its_twin(orthogonalization: str, nesterov: bool, lr_convention: str) -> None:
    common = {"nesterov": nesterov, "lr_convention": lr_convention, "weight_decay": 0.1}
    steps = 5 if orthogonalization == "newton_schulz" else None
    assert_like_twins(
        lambda params: Muon(params, 0.02, ns_dtype="float32", orthogonalization=orthogonalization, **common),
        lambda start: MuonTwin(start, 0.02, steps=steps, **common),
    )


def test_the_precision_is_chosen_by_the_processor_and_the_size_and_never_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = torch.ones(4, 6), torch.ones(160, 160)
    for has_amx, expected in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(spectral, "FAST_BFLOAT16", has_amx)
        assert fast_dtype([small]) == "float32"
        assert fast_dtype([small, large]) == expected
        assert fast_dtype([large.double()]) == "float32"
    assert fast_dtype([small.to("meta")]) == "bfloat16"
    assert fast_dtype([small.to("meta").double()]) == "float32"


def test_a_run_goes_on_in_the_precision_in_which_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(optimizer: torch.optim.Optimizer, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        for param in optimizer.param_groups[0]["params"]:
            param.grad = torch.randn(param.shape, generator=draw)
        optimizer.step()

    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(160, 160))
    monkeypatch.setattr(spectral, "FAST_BFLOAT16", True)
    optimizer = Muon([weight], 0.1)
    step(optimizer, 0)
    other = nn.Parameter(weight.detach().clone())
    # As on a machine of another kind.
    monkeypatch.setattr(spectral, "FAST_BFLOAT16", False)
    resumed = Muon([other], 0.1)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.param_groups[0]["ns_dtype"] == "bfloat16"
    step(optimizer, 1)
    step(resumed, 1)
    assert torch.equal(weight, other)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [("muon", {"momentum": 1.0}, "momentum"), ("muon", {"ns_steps": 0}, "ns_steps must be a whole number")],
)
def test_values_outside_their_domain_are_refused_whatever_the_model(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizer(Choice(name=name, options=options), nn.ParameterList([nn.Parameter(torch.ones(3))]), 0.01)
