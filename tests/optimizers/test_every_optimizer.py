"""What every optimizer of the registry must do; a new entry is tested without an edit here."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import cbs.optimizers
from cbs.config import Choice
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS, build_optimizer

EVERY = pytest.mark.parametrize("name", OPTIMIZERS.names())
Loss = Callable[[nn.Module], Tensor]


class TokenClassifier(nn.Module):
    """Embedding, normalisation, a hidden layer and a head: every kind of parameter a small language model has."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.norm(self.tokens(tokens)))))


class Vector(nn.Module):
    """A single one-dimensional parameter, as in a quadratic."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(12))


def classification() -> tuple[nn.Module, Loss]:
    torch.manual_seed(1)
    tokens, model = torch.arange(16), TokenClassifier()
    return model, lambda trained: nn.functional.cross_entropy(trained(tokens), tokens % 4)


def least_squares() -> tuple[nn.Module, Loss]:
    torch.manual_seed(2)
    inputs, truth, model = torch.randn(32, 6), torch.randn(6, 3), nn.Linear(6, 3, bias=False)
    return model, lambda trained: (trained(inputs) - inputs @ truth).square().mean()


def quadratic() -> tuple[nn.Module, Loss]:
    torch.manual_seed(3)
    curvature, model = torch.logspace(-1, 0, 12), Vector()
    return model, lambda trained: 0.5 * (curvature * trained.w.square()).sum()


PROBLEMS = pytest.mark.parametrize("problem", [classification, least_squares, quadratic])


def train(model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, steps: int) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    return loss(model).item()


@EVERY
@PROBLEMS
def test_halves_the_loss_at_some_learning_rate_of_its_grid(name: str, problem: Callable) -> None:
    start = problem()[1](problem()[0]).item()
    ends = []
    for lr in OPTIMIZERS[name].lr_grid:
        model, loss = problem()
        ends.append(train(model, loss, build_optimizer(Choice(name=name), model, lr), 100))
    assert min(end for end in ends if math.isfinite(end)) < 0.5 * start


@EVERY
@PROBLEMS
def test_resumes_bitwise_from_a_checkpoint(name: str, problem: Callable) -> None:
    lr = OPTIMIZERS[name].lr_grid[1]
    model, loss = problem()
    optimizer = build_optimizer(Choice(name=name), model, lr)
    train(model, loss, optimizer, 5)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, loss, optimizer, 5)
    file.seek(0)
    checkpoint = torch.load(file)
    resumed, _ = problem()
    resumed.load_state_dict(checkpoint["model"])
    other = build_optimizer(Choice(name=name), resumed, 10 * lr)
    other.load_state_dict(checkpoint["optimizer"])
    train(resumed, loss, other, 5)
    for param, again in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(param, again)


@EVERY
def test_repeats_bitwise(name: str) -> None:
    def ends() -> list[Tensor]:
        model, loss = classification()
        train(model, loss, build_optimizer(Choice(name=name), model, OPTIMIZERS[name].lr_grid[1]), 5)
        return list(model.parameters())

    for one, other in zip(ends(), ends(), strict=True):
        assert torch.equal(one, other)


@EVERY
def test_learning_rate_is_the_groups(name: str) -> None:
    model, loss = classification()
    optimizer = build_optimizer(Choice(name=name), model, 0.25)
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}
    before = [param.detach().clone() for param in model.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, loss, optimizer, 2)
    for param, start in zip(model.parameters(), before, strict=True):
        assert torch.equal(param, start)


@EVERY
def test_holds_every_trainable_parameter_once_and_no_other(name: str) -> None:
    model, loss = classification()
    model.norm.requires_grad_(False)
    optimizer = build_optimizer(Choice(name=name), model, OPTIMIZERS[name].lr_grid[0])
    held = [id(param) for group in optimizer.param_groups for param in group["params"]]
    assert sorted(held) == sorted(id(param) for param in model.parameters() if param.requires_grad)
    train(model, loss, optimizer, 1)


@EVERY
def test_grid_increases_by_a_constant_ratio(name: str) -> None:
    grid = OPTIMIZERS[name].lr_grid
    ratios = [following / lr for lr, following in pairwise(grid)]
    assert len(grid) >= 3
    assert min(ratios) > 1
    assert max(ratios) / min(ratios) - 1 < 1e-6


@EVERY
def test_entry_describes_itself(name: str) -> None:
    spec = OPTIMIZERS[name]
    assert spec.name == name
    assert spec.family
    assert spec.paper
    assert spec.summary.endswith(".")


@EVERY
def test_accepts_its_defaults_as_json(name: str) -> None:
    defaults = OPTIMIZERS[name].defaults
    model, loss = classification()
    plain, _ = classification()
    lr = OPTIMIZERS[name].lr_grid[0]
    train(model, loss, build_optimizer(Choice(name=name, options=defaults), model, lr), 2)
    train(plain, loss, build_optimizer(Choice(name=name), plain, lr), 2)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


@EVERY
def test_weight_decay_matters(name: str) -> None:
    if "weight_decay" not in OPTIMIZERS[name].defaults:
        pytest.skip("has no weight decay")
    lr = OPTIMIZERS[name].lr_grid[0]
    (model, loss), (decayed, _) = classification(), classification()
    train(model, loss, build_optimizer(Choice(name=name), model, lr), 3)
    train(decayed, loss, build_optimizer(Choice(name=name, options={"weight_decay": 0.5}), decayed, lr), 3)
    for one, other in zip(model.parameters(), decayed.parameters(), strict=True):
        # A bias of a unit that is dead on this data does not move; matrices always do.
        assert one.ndim < 2 or not torch.equal(one, other)


@EVERY
def test_unknown_option_names_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_optimizer(Choice(name=name, options={"no_such_option": 1}), Vector(), 0.1)
    message = str(caught.value)
    assert "no_such_option" in message
    assert all(option in message for option in OPTIMIZERS[name].defaults)
    assert "\n" not in message


BAD = {"betas": [0.9, 1.5], "momentum": 1.5, "weight_decay": -1.0, "eps": -1.0}


@EVERY
def test_bad_values_are_config_errors(name: str) -> None:
    with pytest.raises(ConfigError, match=f"optimizer '{name}' refuses its options"):
        build_optimizer(Choice(name=name), Vector(), -0.1)
    for option in BAD.keys() & OPTIMIZERS[name].defaults.keys():
        with pytest.raises(ConfigError, match=f"optimizer '{name}' refuses its options"):
            build_optimizer(Choice(name=name, options={option: BAD[option]}), Vector(), 0.1)


@EVERY
def test_a_model_without_trainable_parameters_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match="empty parameter list"):
        build_optimizer(Choice(name=name), Vector().requires_grad_(False), 0.1)


def test_package_exports_exist() -> None:
    assert set(OPTIMIZERS.names()) >= {"adamw", "lamb", "merit", "muon", "sgd"}
    for export in cbs.optimizers.__all__:
        assert getattr(cbs.optimizers, export) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = cbs.optimizers.no_such_name
