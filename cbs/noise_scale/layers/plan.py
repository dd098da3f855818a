"""Which layer kind watches which module."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrize import ParametrizationList

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
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise _refusal(name, module, "mixes the examples of a batch, so that a group has no gradient of its own")
    layers = []
    for name, module in model.named_modules():
        ...
    return layers


def _refusal(name: str, module: nn.Module, why: str) -> ConfigError:
    return ConfigError(f"layer {name!r} ({type(module).__name__}) {why}; use the source 'accumulation'")
