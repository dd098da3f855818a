"""Muon against torch.optim.Muon, and the two parts it is made of."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cbs.config import Choice
from cbs.errors import ConfigError
from cbs.optimizers import build_optimizer
from cbs.optimizers.composite import CompositeOptimizer
from cbs.optimizers.muon import Muon
from cbs.text import GPT, GPTShape

SHAPES = [(8, 24), (24, 8), (8, 8), (1, 5), (32, 96), (96, 32)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"nesterov": False, "momentum": 0.8},
        {"ns_steps": 3, "ns_coefficients": (2.0, -1.5, 0.5)},
        {"lr_convention": "original"},
    ],
)
def test_steps_bitwise_like_torchs_muon(options: dict) -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    theirs = [nn.Parameter(param.detach().clone()) for param in ours]
    optimizer = Muon(ours, 0.02, ns_dtype="bfloat16", **options)
    convention = {"adjust_lr_fn": options.get("lr_convention", "match_rms_adamw"), "weight_decay": 0.0}
    reference = torch.optim.Muon(
        theirs, 0.02, **convention | {key: value for key, value in options.items() if key != "lr_convention"}
    )
    for _ in range(20):
        for param, other in zip(ours, theirs, strict=True):
            param.grad = torch.randn(param.shape)
            other.grad = param.grad.clone()
        optimizer.step()
        reference.step()
    for param, other in zip(ours, theirs, strict=True):
        assert torch.equal(param, other)


def test_continues_bitwise_from_a_state_of_torchs_muon() -> None:
    torch.manual_seed(0)
    theirs = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    reference = torch.optim.Muon(theirs, 0.02, adjust_lr_fn="match_rms_adamw", weight_decay=0.0)
    ours: list[nn.Parameter] = []
    for step in range(10):
        if step == 5:
            ours = [nn.Parameter(param.detach().clone()) for param in theirs]
            optimizer = CompositeOptimizer([Muon(ours, 0.5, ns_dtype="bfloat16")])
            optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
        for position, param in enumerate(theirs):
            param.grad = torch.randn(param.shape)
            if ours:
                ours[position].grad = param.grad.clone()
        reference.step()
        if ours:
            optimizer.step()
    for param, other in zip(ours, theirs, strict=True):
        assert torch.equal(param, other)


def small_gpt() -> nn.Module:
    torch.manual_seed(0)
    return GPT(GPTShape(width=8, layers=1, heads=2, context=4), vocab_size=16)


def test_parts_partition_the_trainable_parameters_at_one_learning_rate() -> None:
    model = small_gpt()
    optimizer = build_optimizer(Choice(name="muon"), model, 0.01)
    assert [type(part).__name__ for part in optimizer.optimizers] == ["Muon", "AdamW"]
    assert {group["lr"] for group in optimizer.param_groups} == {0.01}
    taken = [id(param) for group in optimizer.param_groups for param in group["params"]]
    assert sorted(taken) == sorted(id(param) for param in model.parameters())


def test_options_reach_the_part_they_belong_to() -> None:
    options = {"momentum": 0.8, "nesterov": False, "ns_steps": 3, "weight_decay": 0.2, "betas": [0.8, 0.9], "eps": 1e-6}
    matrices, rest = build_optimizer(Choice(name="muon", options=options), small_gpt(), 0.01).param_groups
    assert [matrices[name] for name in ("momentum", "nesterov", "ns_steps", "weight_decay")] == [0.8, False, 3, 0.2]
    assert [rest[name] for name in ("betas", "eps", "weight_decay")] == [(0.8, 0.9), 1e-6, 0.2]


def test_a_model_without_hidden_matrices_is_trained_by_adamw() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(3))])
    optimizer = build_optimizer(Choice(name="muon"), model, 0.01)
    assert [type(part).__name__ for part in optimizer.optimizers] == ["AdamW"]


def test_a_model_of_nothing_but_hidden_matrices_needs_no_adamw() -> None:
    optimizer = build_optimizer(Choice(name="muon"), nn.Linear(4, 4, bias=False), 0.01)
    assert [type(part).__name__ for part in optimizer.optimizers] == ["Muon"]


def test_convolution_kernels_are_adamws() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Linear(4, 4, bias=False))
    matrices, rest = build_optimizer(Choice(name="muon"), model, 0.01).optimizers
    assert [id(param) for param in matrices.param_groups[0]["params"]] == [id(model[1].weight)]
    assert [id(param) for param in rest.param_groups[0]["params"]] == [id(model[0].weight)]
    with pytest.raises(ValueError, match=r"Muon takes matrices, got a parameter of shape \(4, 3, 3, 3\)"):
        Muon([model[0].weight])


@pytest.mark.parametrize(
    ("convention", "shape", "scale"),
    [
        ("match_rms_adamw", (64, 128), 0.2 * 128**0.5),
        ("match_rms_adamw", (128, 64), 0.2 * 128**0.5),
        ("original", (64, 128), 1.0),
        ("original", (128, 32), 2.0),
    ],
)
def test_the_size_of_a_step_follows_the_convention(convention: str, shape: tuple[int, int], scale: float) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    weight.grad = torch.randn(shape, dtype=torch.float64)
    Muon([weight], 0.1, lr_convention=convention, orthogonalization="svd").step()
    singular = torch.linalg.svdvals(weight.detach()) / (0.1 * scale)
    # All singular values of an exact polar factor are 1; rounding in float64.
    torch.testing.assert_close(singular, torch.ones_like(singular), rtol=1e-12, atol=0.0)
    if convention == "match_rms_adamw":
        assert weight.detach().square().mean().sqrt().item() == pytest.approx(0.1 * 0.2, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_convention": "spectral"}, "lr_convention must be one of match_rms_adamw, original, got 'spectral'"),
        ({"orthogonalization": "qr"}, "orthogonalization must be one of newton_schulz, svd, got 'qr'"),
        ({"ns_dtype": "float8"}, "ns_dtype must be one of auto, float32, bfloat16, got 'float8'"),
        ({"ns_steps": 0}, "ns_steps must be a whole number from 1 to 99, got 0"),
        ({"ns_steps": 2.5}, "ns_steps must be a whole number"),
        ({"ns_coefficients": [1.0, 2.0]}, "ns_coefficients must be three numbers"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"weight_decay": float("nan")}, "weight_decay must be finite and at least 0"),
    ],
)
def test_values_outside_their_domain_are_refused_even_without_matrices(options: dict, message: str) -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match=message):
        Muon([nn.Parameter(torch.ones(2, 2))], **options)
    if options.get("weight_decay") is None:
        with pytest.raises(ConfigError, match=message):
            build_optimizer(Choice(name="muon", options=options), model, 0.01)
