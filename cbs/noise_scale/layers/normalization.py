"""Gains and biases of normalisation layers, by group."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator
from cbs.noise_scale.layers.forward_pass import Pass
from cbs.noise_scale.layers.layer import Layer


@LAYERS.register("layer_norm")
class LayerNorm(Layer):
    """Watches an ``nn.LayerNorm``."""

    types = (nn.LayerNorm,)
    names = ("weight", "bias")

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self._normalized(input, self.value("weight"), self.value("bias")), (input,)

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        factors = {"bias": gradient}
        if "weight" in self.watched:
            factors["weight"] = self._normalized(saved[0].to(accumulator(saved[0].dtype))) * gradient
        shape, dtype = (groups, -1, *self.module.normalized_shape), accumulator(gradient.dtype)
        return {name: Dense(factors[name].reshape(shape).sum(1, dtype=dtype)) for name in self.watched}

    def _normalized(self, input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return layer_norm(input, self.module.normalized_shape, weight, bias, self.module.eps)


@LAYERS.register("group_norm")
class GroupNorm(Layer):
    """Watches an ``nn.GroupNorm``: the channels of all examples side by side are normalised as before, and their
    gains and biases have gradients of their own."""

    types = (nn.GroupNorm,)
    names = ("weight", "bias")

    def call(self, input: Tensor, current: Pass) -> Tensor:
        if len(input) % current.examples:
            self.refuse_rows(len(input), current)
            return self.original(input)  # type: ignore[no-any-return]
        copies = {name: entry.copies for name, entry in zip(self.watched, self.sharing.shared(current), strict=True)}

        def of_rows(name: str) -> Tensor | None:
            if name in copies:
                rows = copies[name].repeat_interleave(len(input) // current.groups, 0)
                return current.cells.restored(rows).flatten()
            value = self.value(name)
            return value if value is None else value.repeat(len(input))

        side_by_side = input.reshape(1, -1, *input.shape[2:])
        norms = len(input) * self.module.num_groups
        weight, bias = of_rows("weight"), of_rows("bias")
        return torch.group_norm(side_by_side, norms, weight, bias, self.module.eps).view(input.shape)
