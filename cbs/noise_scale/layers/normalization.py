"""``nn.LayerNorm``: products of normalised activations and output gradients, added up by group."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense
from cbs.noise_scale.layers.layer import Layer

FEW_GROUPS = 4
"""Groups up to which one fused kernel per group is faster than a product of all examples and a sum over rows."""


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
        return output, (input.detach().to(output.dtype), mean.detach(), rstd.detach())

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        inputs, mean, rstd = saved
        shape = self.module.normalized_shape
        if groups <= FEW_GROUPS:
            parts = zip(*(tensor.chunk(groups) for tensor in (gradient, inputs, mean, rstd)), strict=True)
            mask = [False, "weight" in self.watched, "bias" in self.watched]
            weight, bias = self.value("weight"), self.value("bias")
            pairs = [
                torch.ops.aten.native_layer_norm_backward(part[0], part[1], shape, part[2], part[3], weight, bias, mask)
                for part in parts
            ]
            found = {"weight": [pair[1] for pair in pairs], "bias": [pair[2] for pair in pairs]}
            return {name: Dense(torch.stack(found[name])) for name in self.watched}
        sums = {}
        if "weight" in self.watched:
            sums["weight"] = inputs.sub(mean).mul_(rstd).mul_(gradient)
        if "bias" in self.watched:
            sums["bias"] = gradient
        return {name: Dense(value.reshape(groups, -1, *shape).sum(1)) for name, value in sums.items()}
