"""The relatives of Muon against their slow twins, and what Muon's own tests ask of all its kind."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.optimizers import build_optimizer
from cbs.trial.config import Choice
from extensions.muon_relatives.optimizers import AdamHyperball, Mona, MuonHyperball, NorMuon
from extensions.muon_relatives.tests.reference import HyperballTwin, MonaTwin, NorMuonTwin
from tests.optimizers import test_adam, test_every_optimizer
from tests.optimizers.test_spectral import STEPS, assert_like_twins, gradients, starts

NAMES = ("adamh", "mona", "muonh", "normuon")


@pytest.mark.parametrize("lr_convention", ["match_rms_adamw", "original"])
def test_normuon_agrees_with_its_twin(lr_convention: str) -> None:
    settings = {"beta2": 0.9, "lr_convention": lr_convention, "weight_decay": 0.1}
    assert_like_twins(
        lambda params: NorMuon(params, 0.02, ns_dtype="float32", **settings),
        lambda start: NorMuonTwin(start, 0.02, **settings),
    )


@pytest.mark.parametrize("settings", [{"acceleration_decay": 0.8}, {"acceleration_decay": 0.9, "acceleration": -2.0}])
def test_mona_agrees_with_its_twin_that_adds_up_differences(settings: dict[str, float]) -> None:
    common = {"weight_decay": 0.1, **settings}
    assert_like_twins(
        lambda params: Mona(params, 0.02, ns_dtype="float32", **common), lambda start: MonaTwin(start, 0.02, **common)
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
    weight = nn.Parameter(torch.zeros(4, 6))
    weight.grad = torch.ones(4, 6)
    with pytest.raises(ValueError, match=r"shape \(4, 6\) starts at 0; initialize it otherwise, or train it with"):
        kind([weight], 0.1).step()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("normuon", {"beta2": 1.0}, "beta2"),
        ("muonh", {"momentum": 1.0}, "momentum"),
        ("mona", {"acceleration_decay": 1.0}, "acceleration_decay"),
        ("mona", {"acceleration": "fast"}, "acceleration must be None or a number"),
        ("adamh", {"beta2": -0.1}, "beta2"),
        ("adamh", {"denominator_eps": -1.0}, "denominator_eps must be finite and at least 0"),
    ],
)
def test_values_outside_their_domain_are_refused_whatever_the_model(name: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizer(Choice(name=name, options=options), nn.ParameterList([nn.Parameter(torch.ones(3))]), 0.01)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_weights_have_float32_state(name: str) -> None:
    test_adam.test_half_precision_weights_have_float32_state(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compiled_steps_are_those_that_are_not_compiled(name: str) -> None:
    test_every_optimizer.steps_alike_where_compiled(name)
