"""Polar factors, and the methods built on them against their slow twins and what they reduce to."""

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.norms import Nuclear
from cbs.optimizers import build_optimizer, spectral
from cbs.optimizers.hyperball import AdamHyperball, MuonHyperball
from cbs.optimizers.matching import matched
from cbs.optimizers.muon import Mona, Muon, NorMuon
from cbs.optimizers.spectral import fast_dtype, newton_schulz, orthogonalize, polar_factor
from cbs.trial.config import Choice
from tests.references.muon import HyperballTwin, MuonTwin, singular_value_after
from tests.references.muon import newton_schulz as slow_newton_schulz

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


@pytest.mark.parametrize("name", ["mona", "muon", "muonh", "normuon"])
def test_the_noise_scale_is_read_on_the_matrices_of_the_spectral_part(name: str) -> None:
    model = nn.Sequential(nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 4), nn.Linear(4, 4))
    optimizer = build_optimizer(Choice(name=name), model, 0.1)
    assert matched(optimizer) == "nuclear"
    geometry, params = Nuclear(), list(model.parameters())
    geometry.bind(params, optimizer)
    covered = [tuple(param.shape) for index, param in enumerate(params) if geometry.covers(index)]
    assert covered == [(4, 8), (4, 4)]


def band() -> tuple[float, float]:
    """Least and largest value that five steps make of singular values from 0.01 to 1."""
    values = [singular_value_after(value, 5) for value in np.linspace(0.01, 1.0, 20_001)]
    return min(values), max(values)


def test_newton_schulz_keeps_well_conditioned_matrices_in_the_known_band() -> None:
    low, high = band()
    assert 0.67 < low < 0.69
    assert 1.12 < high < 1.14
    torch.manual_seed(0)
    for shape in ((16, 48), (48, 16), (32, 32)):
        left, _ = torch.linalg.qr(torch.randn(shape[0], min(shape), dtype=torch.float64))
        right, _ = torch.linalg.qr(torch.randn(shape[1], min(shape), dtype=torch.float64))
        # Divided by the Frobenius norm the least singular value is above 1 / (10 sqrt(32)) > 0.01.
        matrix = left * torch.logspace(-1, 0, min(shape), dtype=torch.float64) @ right.mT
        # Exact, rounding of float32, and of bfloat16 (2^-9 relative in each of 15 products).
        for dtype, slack in ((torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 0.05)):
            factor = newton_schulz(matrix.to(dtype)).double()
            singular = torch.linalg.svdvals(factor)
            assert low - slack <= singular.min()
            assert singular.max() <= high + slack
        expected = slow_newton_schulz(matrix.numpy(), 5)
        np.testing.assert_allclose(newton_schulz(matrix).numpy(), expected, rtol=0, atol=1e-10)
        # Coefficients that converge to 1 take it to the exact factor.
        converged = newton_schulz(matrix, 30, (15 / 8, -10 / 8, 3 / 8))
        torch.testing.assert_close(converged, polar_factor(matrix), rtol=0.0, atol=1e-10)


def test_matrices_of_one_shape_come_out_as_one_by_one() -> None:
    torch.manual_seed(0)
    shapes = [(4, 12), (12, 4), (4, 4), (4, 12), (4, 12), (200, 100)]
    matrices = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    kept = [matrix.clone() for matrix in matrices]
    for matrix, factor in zip(matrices, orthogonalize(matrices), strict=True):
        assert factor.shape == matrix.shape
        # Batched products add in another order.
        torch.testing.assert_close(factor, newton_schulz(matrix), rtol=0.0, atol=1e-11)
    for method in ("newton_schulz", "svd"):
        for dtype in ("float32", "bfloat16"):
            orthogonalize(matrices, method=method, dtype=dtype)
    for matrix, before in zip(matrices, kept, strict=True):
        assert torch.equal(matrix, before)


def test_the_precision_is_the_matrixs_or_bfloat16() -> None:
    matrices = [torch.randn(4, 6, dtype=dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)]
    full, low = orthogonalize(matrices), orthogonalize(matrices, dtype="bfloat16")
    assert [factor.dtype for factor in full] == [torch.float64, torch.float32, torch.float32]
    assert {factor.dtype for factor in low} == {torch.bfloat16}


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


def test_the_exact_factor_leaves_out_what_is_zero() -> None:
    torch.manual_seed(0)
    assert torch.equal(polar_factor(torch.zeros(3, 5)), torch.zeros(3, 5))
    matrix = torch.randn(6, 2, dtype=torch.float64) @ torch.randn(2, 4, dtype=torch.float64)
    singular = torch.linalg.svdvals(polar_factor(matrix))
    torch.testing.assert_close(singular, torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("method", ["newton_schulz", "svd"])
def test_a_gradient_that_is_not_finite_is_not_hidden(method: str) -> None:
    for value in (torch.nan, torch.inf):
        matrix = torch.randn(4, 6)
        matrix[1, 2] = value
        assert orthogonalize([matrix], method=method)[0].isnan().any()
        for build in (Muon, NorMuon, MuonHyperball, Mona):
            gradient = torch.ones(4, 6)
            gradient[1, 2] = value
            broken = one_step(lambda params, build=build: build(params, 0.1), torch.ones(4, 6), gradient)
            assert broken[1, 2].isnan()


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


@pytest.mark.parametrize("optimizer", [Muon, NorMuon, MuonHyperball, Mona])
def test_the_momentum_of_a_group_is_that_of_its_parameters(optimizer: Callable) -> None:
    torch.manual_seed(0)
    start, slopes = torch.randn(4, 3), [torch.randn(4, 3) for _ in range(3)]
    ends = []
    for group, default in (({}, 0.5), ({"momentum": 0.5}, 0.9), ({}, 0.9)):
        param = nn.Parameter(start.clone())
        stepped = optimizer([{"params": [param], **group}], lr=0.1, momentum=default)
        for slope in slopes:
            param.grad = slope.clone()
            stepped.step()
        ends.append(param.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.allclose(ends[0], ends[2])
