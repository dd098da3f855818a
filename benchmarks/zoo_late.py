"""Models of which other parameters are trained from the second step on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from benchmarks.model_zoo import CLASSES, Entry, classify, features
from benchmarks.zoo_layers import mlp


def late(change: Callable[[Any], object], *, frozen: str = "") -> Entry:
    """An MLP that is changed before its second step; ``frozen`` is not trained before."""

    def build() -> nn.Module:
        model = mlp()
        if frozen:
            model.get_submodule(frozen).requires_grad_(False)
        return model

    def second(model: nn.Module, step: int) -> None:
        if step == 1:
            change(model)

    return Entry(build=build, batch=features(12), loss=classify, change=second, compiled=False, skips=("trainer",))


def linear(model: Any, *shape: int) -> nn.Module:
    """A layer more for a model, in its dtype."""
    return nn.Linear(*shape, dtype=model[0].weight.dtype)


def swap(model: Any) -> None:
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)


LATE = {
    "unfrozen": late(lambda model: model[0].requires_grad_(True), frozen="0"),
    "frozen": late(lambda model: model[0].requires_grad_(False)),
    "one unfrozen, one frozen": late(swap, frozen="0"),
    "a bias unfrozen": late(lambda model: model[0].bias.requires_grad_(True), frozen="0"),
    "a new head": late(lambda model: model.__setitem__(4, linear(model, 24, CLASSES))),
    "a layer more": late(lambda model: model.append(linear(model, CLASSES, CLASSES))),
    "another weight": late(lambda model: setattr(model[2], "weight", nn.Parameter(model[2].weight.detach() / 2))),
}
