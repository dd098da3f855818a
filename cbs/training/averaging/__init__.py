"""Averages of the weights over training that are validated in place of the weights; one file each, found by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.registry import Registry
from cbs.training.averaging.base import WeightAverage
from cbs.training.averaging.weights import answers_for_another_point
from cbs.trial.config import Choice

AVERAGES: Registry[Callable[..., WeightAverage]] = Registry("averaging", "cbs.training.averaging", makes=WeightAverage)
"""Entries are called as ``entry(model, *, option=default, ...)``, which starts an average at the model's weights."""

__all__ = ["AVERAGES", "WeightAverage", "build_averaging"]


def build_averaging(choice: Choice, model: nn.Module, optimizer: torch.optim.Optimizer) -> WeightAverage:
    """Build the average that a configuration names, over the weights of a model before its first step.

    Raises:
        ConfigError: if the name or an option is unknown, a value is invalid, or the optimizer averages its weights
            itself.
    """
    average: WeightAverage = AVERAGES.make(choice.name, model, **choice.options)
    if answers_for_another_point(optimizer):
        raise ConfigError(
            f"{type(optimizer).__name__} already averages its weights, so averaging {choice.name!r} would validate "
            "neither; use --set averaging=none"
        )
    return average
