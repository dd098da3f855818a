"""Polar factors, and the methods built on them against their slow twins and what they reduce to."""

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.optimizers import build_optimizer, spectral
from cbs.optimizers.hyperball import AdamHyperball, MuonHyperball
from cbs.optimizers.muon import Mona, Muon, NorMuon
from cbs.optimizers.spectral import fast_dtype
from cbs.trial.config import Choice
from tests.references.muon import HyperballTwin, MuonTwin

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


@pytest.mark.parametrize("lr_convention", ["match_rms_adamw", "original"])
def test_normuon_agrees_with_its_twin(lr_convention: str) -> None:
    settings = {"beta2": 0.9, "lr_convention": lr_convention, "weight_decay": 0.1}
    assert_like_twins(
        lambda params: NorMuon(params, 0.02, ns_dtype="float32", **settings),
        lambda start: MuonTwin(start, 0.02, **settings),
    )


@pytest.mark.parametrize("settings", [{"acceleration_decay": 0.8}, {"acceleration_decay": 0.9, "acceleration": -2.0}])
def test_mona_agrees_with_its_twin_that_adds_up_differences(settings: dict[str, float]) -> None:
    common = {"weight_decay": 0.1, **settings}
    assert_like_twins(
        lambda params: Mona(params, 0.02, ns_dtype="float32", **common),
        lambda start: MuonTwin(start, 0.02, **common),
    )


@pytest.mark.parametrize("options", [{"nesterov": True}, {"nesterov": False}, {"beta2": 0.8}])
def test_muonh_and_adamh_agree_with_their_twin(options: dict[str, object]) -> None:
    settings = {"lr": 0.02, "momentum": 0.9, **options}
    twins = [HyperballTwin(array if array.any() else array + 0.1, **settings) for array in starts(1)]
    params = [nn.Parameter(torch.tensor(twin.w)) for twin in twins]
    kind = AdamHyperball if "beta2" in options else partial(MuonHyperball, ns_dtype="float32")
    optimizer = kind(params, **settings)
    norms = [param.norm().item() for param in params]
    for step in range(STEPS):
        for param, slow, gradient in zip(params, twins, gradients(2, step), strict=True):
            param.grad = torch.tensor(gradient)
            slow.step(gradient)
        optimizer.step()
    for param, slow, norm in zip(params, twins, norms, strict=True):
        np.testing.assert_allclose(param.detach().numpy(), slow.w, rtol=1e-6, atol=1e-6)
        assert param.norm().item() == pytest.approx(norm)


@pytest.mark.parametrize("kind", [MuonHyperball, AdamHyperball])
def test_spheres_need_a_matrix_that_does_not_start_at_zero(kind: Callable) -> None:
    with pytest.raises(ValueError, match=r"shape \(4, 6\) starts at 0; initialize it otherwise, or train it with"):
        one_step(lambda params: kind(params, 0.1), torch.zeros(4, 6), torch.ones(4, 6))


def one_step(build: Callable, start: Tensor, gradient: Tensor) -> Tensor:
    weight = nn.Parameter(start.clone())
    weight.grad = gradient
    build([weight]).step()
    return weight.detach()


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
    [
        ("normuon", {"beta2": 1.0}, "beta2"),
        ("muonh", {"momentum": 1.0}, "momentum"),
        ("mona", {"acceleration_decay": 1.0}, "acceleration_decay"),
        ("mona", {"acceleration": "fast"}, "acceleration must be None or a number"),
        ("adamh", {"beta2": -0.1}, "beta2"),
        ("adamh", {"denominator_eps": -1.0}, "denominator_eps must be finite and at least 0"),
        ("muon", {"ns_steps": 0}, "ns_steps must be a whole number"),
    ],
)
def test_values_outside_their_domain_are_refused_whatever_the_model(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizer(Choice(name=name, options=options), nn.ParameterList([nn.Parameter(torch.ones(3))]), 0.01)
