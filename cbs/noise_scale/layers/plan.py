"""Which layer kind watches which module."""

from __future__ import annotations

from torch import nn

from cbs.errors import ConfigError
from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.layer import Layer
from cbs.noise_scale.layers.recorder import Recorder


def plan(model: nn.Module, indices: dict[int, int], recorder: Recorder) -> list[Layer]:
    """One layer for every module with parameters to watch.

    Args:
        model: to watch.
        indices: index by ``id`` of the parameter tensor, for those to watch.
        recorder: for the layers.

    Raises:
        ConfigError: if a module cannot be watched.
    """
    layers = []
    for name, module in model.named_modules():
        watched = {
            attribute: indices[id(parameter)]
            for attribute, parameter in module._parameters.items()
            if parameter is not None and id(parameter) in indices
        }
        if watched:
            layers.append(_kind(module)(module, name, watched, recorder))
    return layers


def _kind(module: nn.Module) -> type[Layer]:
    for name in LAYERS:
        if isinstance(module, LAYERS[name].types):
            return LAYERS[name]
    raise ConfigError(f"no {type(module)}")
