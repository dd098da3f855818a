"""Which parameters the matrix part takes: the rule, the override, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from cbs.config import Choice
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.optimizers.routing import hidden_matrices, route

ROUTED = [name for name in OPTIMIZERS.names() if "matrices" in OPTIMIZERS[name].defaults]


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
        self.patches = nn.Conv2d(3, 8, 2, bias=False)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight


HIDDEN = ["blocks.0.qkv.weight", "blocks.0.output.weight", "blocks.1.qkv.weight", "blocks.1.output.weight"]


def names(model: nn.Module, matrices: object = "hidden") -> list[str]:
    return [entry.name for entry in route(model, matrices).routes if entry.is_matrix]


@pytest.mark.parametrize("tied", [True, False])
def test_the_rule_takes_the_matrices_between_hidden_layers(tied: bool) -> None:
    model = Transformer(tied)
    assert names(model) == HIDDEN
    assert [id(param) for param in hidden_matrices(model)] == [id(model.get_parameter(name)) for name in HIDDEN]


def test_every_trainable_parameter_has_one_route_and_a_reason() -> None:
    model = Transformer(tied=False)
    routing = route(model)
    assert [entry.name for entry in routing.routes] == [name for name, _ in model.named_parameters()]
    assert [id(entry.parameter) for entry in routing.routes] == [id(param) for param in model.parameters()]
    assert len(routing.matrices) + len(routing.rest) == len(routing.routes)
    reasons = {entry.name: entry.reason for entry in routing.routes}
    assert reasons["tokens.weight"] == reasons["positions.weight"] == reasons["pos_embed"] == "embedding"
    assert reasons["head.weight"] == "output layer"
    assert (
        reasons["patches.weight"]
        == reasons["blocks.0.norm.weight"]
        == reasons["blocks.1.output.bias"]
        == "not a matrix"
    )
    assert {reasons[name] for name in HIDDEN} == {"hidden"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        routing.routes[0].is_matrix = True


def test_the_rule_takes_all_but_the_last_matrix_of_a_classifier() -> None:
    model = nn.ModuleDict(
        {
            "features": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()),
            "classifier": nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
        }
    )
    assert names(model) == ["classifier.0.weight", "classifier.2.weight"]


def test_frozen_parameters_have_no_route() -> None:
    model = Transformer(tied=True)
    model.blocks[0].requires_grad_(False)
    assert names(model) == HIDDEN[2:]
    assert not any(entry.name.startswith("blocks.0") for entry in route(model).routes)
    with pytest.raises(ValueError, match=r"'blocks\.0\.qkv\.weight' of matrices matches no trainable parameter"):
        route(model, ["blocks.0.qkv.weight"])


def test_all_takes_every_matrix() -> None:
    model = Transformer(tied=True)
    assert names(model, "all") == ["pos_embed", "tokens.weight", "positions.weight", *HIDDEN]
    reasons = {entry.name: entry.reason for entry in route(model, "all").routes}
    assert reasons["tokens.weight"] == "by override"
    assert reasons["blocks.0.qkv.weight"] == "hidden"
    assert reasons["patches.weight"] == "not a matrix"


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["blocks.0.qkv.weight"], HIDDEN[:1]),
        (["blocks.*.qkv.weight", "head.*"], [HIDDEN[0], HIDDEN[2], "head.weight"]),
        (["blocks.[01].*qkv.weight", "!blocks.1.*"], HIDDEN[:1]),
        (["!blocks.0.*"], HIDDEN[2:]),
        (["!blocks.*", "blocks.1.q??.weight"], HIDDEN[2:3]),
        (["!*"], []),
    ],
)
def test_patterns_add_and_take_away_in_order(patterns: list[str], expected: list[str]) -> None:
    assert names(Transformer(tied=False), patterns) == expected
    assert names(Transformer(tied=False), tuple(patterns)) == expected


def test_an_override_marks_only_what_it_moves() -> None:
    reasons = {entry.name: entry.reason for entry in route(Transformer(tied=False), ["!blocks.0.*", "head.*"]).routes}
    assert {name for name, reason in reasons.items() if reason == "by override"} == {*HIDDEN[:2], "head.weight"}


def test_a_shared_parameter_is_found_under_each_of_its_names() -> None:
    for pattern in ("tokens.weight", "head.weight"):
        assert names(Transformer(tied=True), [pattern]) == ["tokens.weight"]


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ("hiden", """matrices must be "hidden", "all" or a list of patterns, got 'hiden'"""),
        ([], 'matrices must be "hidden", "all" or a list of patterns'),
        ([3], 'matrices must be "hidden", "all" or a list of patterns'),
        (["block.0.qkv.weight"], "matches no trainable parameter: did you mean blocks.0.qkv.weight"),
        (["zzz"], "matches no trainable parameter: there are pos_embed, tokens.weight, positions.weight"),
        (["blocks.0.*"], "matches 'blocks.0.norm.weight', which is not a matrix: did you mean blocks.0.qkv.weight or"),
        (["patches.weight"], "matches 'patches.weight', which is not a matrix"),
        (["!head.*"], "'!head.*' of matrices takes nothing away: there are blocks.0.qkv.weight"),
        (["!block.0.qkv.weight"], "takes nothing away: did you mean blocks.0.qkv.weight"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(matrices: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        route(Transformer(tied=False), matrices)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ROUTED)
def test_every_routed_optimizer_has_the_override(name: str) -> None:
    model = Transformer(tied=False)
    optimizer = build_optimizer(Choice(name=name, options={"matrices": ["head.weight"]}), model, 0.01)
    assert [id(param) for param in optimizer.param_groups[0]["params"]] == [id(model.head.weight)]
    with pytest.raises(ConfigError, match=f"optimizer '{name}' refuses its options: pattern 'heda'"):
        build_optimizer(Choice(name=name, options={"matrices": ["heda"]}), model, 0.01)


def test_the_spectral_family_is_routed() -> None:
    assert set(ROUTED) >= {"muon", "muon_plus", "orscale", "scion"}
