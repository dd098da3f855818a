"""``nn.LayerNorm``: products of normalised activations and output gradients, added up by group."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense, cast
from cbs.noise_scale.layers.layer import Layer

FUSED_NUMEL = 2**15
"""Activations per group from which one fused kernel per group is faster than a product of all and a sum over rows."""


@LAYERS.register("layer_norm")
class LayerNorm(Layer):
    """Watches an ``nn.LayerNorm``."""

    types = (nn.LayerNorm,)
    names = ("weight", "bias")

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module = self.module
        output, mean, rstd = torch.native_layer_norm(
            input, module.normalized_shape, self.value("weight"), self.value("bias"), module.eps
        )
        return output, (cast(input.detach(), output.dtype), mean, rstd)

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        if gradient.numel() >= FUSED_NUMEL * groups:
            return self._fused(groups, saved, gradient)
        inputs, mean, rstd = saved
        shape = self.module.normalized_shape
        found = {}
        if "weight" in self.watched:
            found["weight"] = inputs.sub(mean).mul_(rstd).mul_(gradient)
        if "bias" in self.watched:
            found["bias"] = gradient
        return {name: Dense(value.reshape(groups, -1, *shape).sum(1)) for name, value in found.items()}

    def _fused(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        shape, weight, bias = self.module.normalized_shape, self.value("weight"), self.value("bias")
        mask = [False, "weight" in self.watched, "bias" in self.watched]
        step = gradient.shape[0] // groups
        found = {name: [] for name in self.watched}
        for start in range(0, gradient.shape[0], step):
            inputs, mean, rstd = (tensor[start : start + step] for tensor in saved)
            here = torch.ops.aten.native_layer_norm_backward(
                gradient[start : start + step], inputs, shape, mean, rstd, weight, bias, mask
            )
            for name in self.watched:
                found[name].append(here[1 if name == "weight" else 2])
        return {name: Dense(torch.stack(values)) for name, values in found.items()}
