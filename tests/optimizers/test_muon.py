"""Which parameters Muon takes, and what it does to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cbs.config import Choice
from cbs.optimizers import build_optimizer, hidden_matrices


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24, bias=False)
        self.output = nn.Linear(8, 8)


class Transformer(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Embedding(5, 8)
        self.pos_embed = nn.Parameter(torch.zeros(5, 8))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


def names(model: nn.Module) -> list[str]:
    hidden = {id(param) for param in hidden_matrices(model)}
    return [name for name, param in model.named_parameters() if id(param) in hidden]


@pytest.mark.parametrize("tied", [True, False])
def test_takes_the_matrices_between_hidden_layers(tied: bool) -> None:
    expected = ["blocks.0.qkv.weight", "blocks.0.output.weight", "blocks.1.qkv.weight", "blocks.1.output.weight"]
    assert names(Transformer(tied)) == expected


def test_takes_all_but_the_last_matrix_of_a_classifier() -> None:
    model = nn.ModuleDict(
        {
            "features": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()),
            "classifier": nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
        }
    )
    assert names(model) == ["classifier.0.weight", "classifier.2.weight"]


def test_leaves_frozen_parameters_alone() -> None:
    model = Transformer(tied=True)
    model.blocks[0].requires_grad_(False)
    assert names(model) == ["blocks.1.qkv.weight", "blocks.1.output.weight"]


def test_parts_partition_the_trainable_parameters_at_one_learning_rate() -> None:
    model = Transformer(tied=True)
    optimizer = build_optimizer(Choice(name="muon"), model, 0.01)
    assert [type(part).__name__ for part in optimizer.optimizers] == ["Muon", "AdamW"]
    assert {group["lr"] for group in optimizer.param_groups} == {0.01}
    taken = [id(param) for group in optimizer.param_groups for param in group["params"]]
    assert sorted(taken) == sorted(id(param) for param in model.parameters())


def test_a_model_without_hidden_matrices_is_trained_by_adamw() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(3))])
    optimizer = build_optimizer(Choice(name="muon"), model, 0.01)
    assert [type(part).__name__ for part in optimizer.optimizers] == ["AdamW"]


def test_a_model_of_nothing_but_hidden_matrices_needs_no_adamw() -> None:
    optimizer = build_optimizer(Choice(name="muon"), nn.Linear(4, 4, bias=False), 0.01)
    assert [type(part).__name__ for part in optimizer.optimizers] == ["Muon"]


def test_update_is_orthogonal_up_to_newton_schulz_and_matches_adamws_rms() -> None:
    torch.manual_seed(0)
    model = nn.Linear(128, 64, bias=False)
    optimizer = build_optimizer(Choice(name="muon"), model, 0.1)
    before = model.weight.detach().clone()
    model.weight.grad = torch.randn(64, 128)
    optimizer.step()
    singular = torch.linalg.svdvals((before - model.weight.detach()) / (0.1 * 0.2 * 128**0.5))
    # Five steps with these coefficients bring singular values between about 0.7 and 1.2 (Jordan 2024); bfloat16 inside.
    assert singular.min() > 0.6
    assert singular.max() < 1.3
