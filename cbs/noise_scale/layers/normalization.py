"""Gains and biases of normalisation layers: products of normalised activations and output gradients, by group."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator
from cbs.noise_scale.layers.layer import Layer


class RowNorm(Layer):
    """A layer that multiplies normalised rows with a gain and adds a bias."""

    names: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.normalized(input, *map(self.value, self.names)), (input,)

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        factors = {"bias": gradient}
        if "weight" in self.watched:
            rows = saved[0].to(accumulator(saved[0].dtype))
            factors["weight"] = self.normalized(rows) * gradient
        shape, dtype = (groups, -1, *self.module.normalized_shape), accumulator(gradient.dtype)
        return {name: Dense(factors[name].reshape(shape).sum(1, dtype=dtype)) for name in self.watched}

    def normalized(self, input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """The output with these parameters in the place of the module's."""
        raise NotImplementedError


@LAYERS.register("layer_norm")
class LayerNorm(RowNorm):
    """Watches an ``nn.LayerNorm``."""

    types = (nn.LayerNorm,)

    def normalized(self, input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return layer_norm(input, self.module.normalized_shape, weight, bias, self.module.eps)


@LAYERS.register("rms_norm")
class RMSNorm(RowNorm):
    """Watches an ``nn.RMSNorm``."""

    types = (nn.RMSNorm,)
    names = ("weight",)

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        self._eps = self.module.eps or torch.finfo(input.dtype).eps
        return super().run(input)

    def normalized(self, input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return rms_norm(input, self.module.normalized_shape, weight, self._eps)


@LAYERS.register("group_norm")
class GroupNorm(Layer):
    """Watches an ``nn.GroupNorm``."""

    types = (nn.GroupNorm,)
    names = ("weight", "bias")

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module, input = self.module, input.contiguous()
        weight, bias = self.value("weight"), self.value("bias")
        channels, positions = input.shape[1], input[0, 0].numel()
        output, mean, rstd = torch.native_group_norm(
            input, weight, bias, len(input), channels, positions, module.num_groups, module.eps
        )
        return output, (input, mean, rstd)

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        values, mean, rstd = saved
        dtype = accumulator(gradient.dtype)
        gradient = gradient.flatten(2).to(dtype) if gradient.ndim > 2 else gradient.unsqueeze(2).to(dtype)
        sums = {"bias": gradient.sum(2)}
        if "weight" in self.watched:
            # Products with activations, from which those with normalised ones follow: half the reading and writing.
            products = torch.linalg.vecdot(gradient, values.view_as(gradient).to(dtype))
            of_norms = (len(values), self.module.num_groups, -1)
            centred = products.view(of_norms) - sums["bias"].view(of_norms) * mean.unsqueeze(2)
            sums["weight"] = centred * rstd.unsqueeze(2)
        channels = values.shape[1]
        return {name: Dense(sums[name].reshape(groups, -1, channels).sum(1)) for name in self.watched}
