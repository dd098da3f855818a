"""Gains and biases of normalisation layers: products of normalised activations and output gradients, by group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator, cast
from cbs.noise_scale.layers.layer import Layer

FUSED_NUMEL = 2**15
"""Activations per group from which one fused kernel per group is faster than a product of all and a sum over rows."""

_layer_norm_backward = torch.ops.aten.native_layer_norm_backward
"""Looked up once: on small models that takes as long as the call."""


@LAYERS.register("layer_norm")
class LayerNorm(Layer):
    """Watches an ``nn.LayerNorm``."""

    types = (nn.LayerNorm,)
    names = ("weight", "bias")
    whole = True

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module = self.module
        output, mean, rstd = torch.native_layer_norm(
            input, module.normalized_shape, self.value("weight"), self.value("bias"), module.eps
        )
        return output, (cast(input, output.dtype), mean, rstd)

    def contributions(
        self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor
    ) -> tuple[dict[str, Contribution], Tensor]:
        if groups > 1 and gradient.numel() < FUSED_NUMEL * groups:
            return self._elementwise(groups, saved, gradient), self._native(gradient, saved, [True, False, False])[0]
        mask = ["weight" in self.watched, "bias" in self.watched]
        inputs, *totals = self._native(gradient, saved, [True, *mask])
        step = gradient.shape[0] // groups
        parts: list[list[Tensor]] = [[], []]
        for start in range(0, gradient.shape[0] - step, step):
            here = [tensor.narrow(0, start, step) for tensor in saved]
            _, *values = self._native(gradient.narrow(0, start, step), here, [False, *mask])
            for part, value in zip(parts, values, strict=True):
                part.append(value)
        found: dict[str, Contribution] = {}
        for name, part, total in zip(self.names, parts, totals, strict=True):
            if name in self.watched:
                # The last group has what the others leave over.
                last = total
                for value in part:
                    last = last - value
                found[name] = Dense(torch.stack([*part, last]), total)
        return found, inputs

    def _elementwise(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        inputs, mean, rstd = saved
        found = {}
        if "weight" in self.watched:
            centred = torch.sub(inputs, mean, out=self.recorder.scratch.empty(inputs.shape, like=mean))
            found["weight"] = centred.mul_(rstd).mul_(gradient)
        if "bias" in self.watched:
            found["bias"] = gradient
        shape = self.module.normalized_shape
        return {name: Dense(value.reshape(groups, -1, *shape).sum(1)) for name, value in found.items()}

    def _native(self, gradient: Tensor, saved: Sequence[Tensor], mask: list[bool]) -> tuple[Tensor, ...]:
        """Gradients of input, weight and bias, those in the mask."""
        inputs, mean, rstd = saved
        return _layer_norm_backward(
            gradient, inputs, self.module.normalized_shape, mean, rstd, self.value("weight"), self.value("bias"), mask
        )


@LAYERS.register("rms_norm")
class RMSNorm(Layer):
    """Watches an ``nn.RMSNorm``."""

    types = (nn.RMSNorm,)
    names = ("weight",)

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module = self.module
        return rms_norm(input, module.normalized_shape, self.value("weight"), module.eps), (input,)

    def contributions(
        self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor
    ) -> tuple[dict[str, Contribution], None]:
        inputs, shape, eps = saved[0], self.module.normalized_shape, self.module.eps
        normalised = rms_norm(inputs.to(accumulator(inputs.dtype)), shape, None, eps or torch.finfo(inputs.dtype).eps)
        return {"weight": Dense((normalised * gradient).reshape(groups, -1, *shape).sum(1))}, None


@LAYERS.register("group_norm")
class GroupNorm(Layer):
    """Watches an ``nn.GroupNorm``."""

    types = (nn.GroupNorm,)
    names = ("weight", "bias")
    whole = True

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module, input = self.module, input.contiguous()
        output, mean, rstd = torch.native_group_norm(
            input, self.value("weight"), self.value("bias"), *_sizes(input), module.num_groups, module.eps
        )
        return output, (cast(input, output.dtype), mean, rstd)

    def contributions(
        self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor
    ) -> tuple[dict[str, Contribution], Tensor]:
        values, mean, rstd = saved
        gradient, parts = gradient.contiguous(), self.module.num_groups
        inputs = torch.ops.aten.native_group_norm_backward(
            gradient, values, mean, rstd, self.value("weight"), *_sizes(values), parts, [True, False, False]
        )[0]
        examples, channels, _ = _sizes(values)
        flat = gradient.view(examples, channels, -1)
        bias = flat.sum(2, dtype=accumulator(gradient.dtype))
        found = {}
        if "weight" in self.watched:
            weight = torch.linalg.vecdot(flat.to(bias.dtype), values.view_as(flat).to(bias.dtype))
            weight = weight.view(examples, parts, -1) - bias.view(examples, parts, -1) * mean.unsqueeze(2)
            found["weight"] = weight * rstd.unsqueeze(2)
        if "bias" in self.watched:
            found["bias"] = bias
        return {name: Dense(value.reshape(groups, -1, channels).sum(1)) for name, value in found.items()}, inputs


def _sizes(values: Tensor) -> tuple[int, int, int]:
    """Examples, channels and positions."""
    return values.shape[0], values.shape[1], values[0, 0].numel()
