"""Checks of models, optimizers and losses that a user's own code returns, so that a trial trains what it should."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cbs.errors import ConfigError


def check_model(model: Any) -> nn.Module:
    """Check what a workload returned as its model.

    Raises:
        ConfigError: if it is not a module, or has nothing to train yet.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"build_model must return a torch.nn.Module, got {type(model).__name__}")
    parameters = list(model.parameters())
    if any(is_lazy(parameter) for parameter in parameters):
        raise ConfigError("build_model returned lazy parameters without a shape: call the model on an example first")
    if not any(parameter.requires_grad for parameter in parameters):
        raise ConfigError(
            f"build_model returned {len(parameters)} parameters, none of which requires a gradient: there is nothing "
            "to train; create parameters in build_model, not in the forward pass"
        )
    return model


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, name: str) -> None:
    """Check that an optimizer trains all parameters, at a learning rate that can be set.

    Raises:
        ConfigError: if a parameter that requires a gradient is not in its groups, or a group has no ``lr``.
    """
    groups = optimizer.param_groups
    if any("lr" not in group for group in groups):
        raise ConfigError(
            f"optimizer {name!r} has no 'lr' in its param_groups, where the schedule of the sweep sets the learning "
            f"rate; it has {', '.join(key for key in groups[0] if key != 'params')}"
        )
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    wanted = {key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad}
    left = [key for key, parameter in wanted.items() if id(parameter) not in trained]
    if left:
        raise ConfigError(
            f"optimizer {name!r} does not train {left[0]}, {len(left)} of {len(wanted)} parameters: their gradients "
            "would count in clipping and in the noise scale; call requires_grad_(False) on them in build_model"
        )


def check_losses(losses: Any, examples: int) -> Tensor:
    """Check what a workload returned as the losses of this many examples.

    Training minimizes their mean. A mean over fewer values or more dimensions would be another loss, with another best
    learning rate.

    Raises:
        ConfigError: if it is not a tensor of shape ``[examples]``.
    """
    if not isinstance(losses, Tensor):
        raise ConfigError(f"example_losses must return a tensor of one loss per example, got {type(losses).__name__}")
    if losses.shape != (examples,):
        raise ConfigError(
            f"example_losses must return one loss per example, shape [{examples}], got shape {list(losses.shape)}"
        )
    return losses
