"""Gains and biases of normalisation layers: products of normalised activations and output gradients, by group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Dense, Found, accumulator, cast
from cbs.noise_scale.layers.layer import Layer

FUSED_NUMEL = 2**15
"""Activations per group from which one fused kernel per group is faster than a product of all and a sum over rows."""

_layer_norm_backward = torch.ops.aten.native_layer_norm_backward
_group_norm_backward = torch.ops.aten.native_group_norm_backward
"""Looked up once: on small models that takes as long as the call."""


class _Normalization(Layer):
    """A layer whose fused backward pass knows the gradients of input, gain and bias."""

    names = ("weight", "bias")
    whole = True

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> Found:
        mask = [name in self.watched for name in self.names]
        if groups > 1 and gradient.numel() < FUSED_NUMEL * groups:
            values = self.elementwise(saved, gradient)
            found = {
                name: Dense(value.reshape(groups, -1, *self.module.weight.shape).sum(1))
                for name, value in zip(self.names, values, strict=True)
                if value is not None
            }
            return dict(found), self.native(gradient, saved, [True, False, False])[0]
        inputs, *totals = self.native(gradient, saved, [True, *mask])
        rows = gradient.shape[0] // groups
        parts = [
            self.native(
                gradient.narrow(0, start, rows), [part.narrow(0, start, rows) for part in saved], [False, *mask]
            )
            for start in range(0, gradient.shape[0] - rows, rows)
        ]
        found = {}
        for place, name in enumerate(self.names):
            if mask[place]:
                # The last group has what the others leave over.
                own = [part[1 + place] for part in parts]
                last = totals[place]
                for value in own:
                    last = last - value
                found[name] = Dense(torch.stack([*own, last]), totals[place])
        return dict(found), inputs

    def native(self, gradient: Tensor, saved: Sequence[Tensor], mask: list[bool]) -> tuple[Tensor, ...]:
        """Gradients of input, weight and bias, those in the mask."""
        raise NotImplementedError

    def elementwise(self, saved: tuple[Tensor, ...], gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """What adds up to the gradients of weight and bias, if these are watched, over the rows of a group."""
        raise NotImplementedError


@LAYERS.register("layer_norm")
class LayerNorm(_Normalization):
    """Watches an ``nn.LayerNorm``."""

    types = (nn.LayerNorm,)

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module = self.module
        output, mean, rstd = torch.native_layer_norm(
            input, module.normalized_shape, self.value("weight"), self.value("bias"), module.eps
        )
        return output, (cast(input, output.dtype), mean, rstd)

    def native(self, gradient: Tensor, saved: Sequence[Tensor], mask: list[bool]) -> tuple[Tensor, ...]:
        weight, bias = self.value("weight"), self.value("bias")
        return _layer_norm_backward(gradient, saved[0], self.module.normalized_shape, *saved[1:], weight, bias, mask)

    def elementwise(self, saved: tuple[Tensor, ...], gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        inputs, mean, rstd = saved
        weight = None
        if "weight" in self.watched:
            weight = torch.sub(inputs, mean).mul_(rstd).mul_(gradient)
        return weight, gradient if "bias" in self.watched else None


@LAYERS.register("rms_norm")
class RMSNorm(Layer):
    """Watches an ``nn.RMSNorm``."""

    types = (nn.RMSNorm,)
    names = ("weight",)

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module = self.module
        return rms_norm(input, module.normalized_shape, self.value("weight"), module.eps), (input,)

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> Found:
        inputs, shape, eps = saved[0], self.module.normalized_shape, self.module.eps
        normalised = rms_norm(inputs.to(accumulator(inputs.dtype)), shape, None, eps or torch.finfo(inputs.dtype).eps)
        return {"weight": Dense((normalised * gradient).reshape(groups, -1, *shape).sum(1))}, None


@LAYERS.register("group_norm")
class GroupNorm(_Normalization):
    """Watches an ``nn.GroupNorm``."""

    types = (nn.GroupNorm,)

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        module, input = self.module, input.contiguous()
        output, mean, rstd = torch.native_group_norm(
            input, self.value("weight"), self.value("bias"), *_sizes(input), module.num_groups, module.eps
        )
        return output, (cast(input, output.dtype), mean, rstd)

    def native(self, gradient: Tensor, saved: Sequence[Tensor], mask: list[bool]) -> tuple[Tensor, ...]:
        weight, parts = self.value("weight"), self.module.num_groups
        return _group_norm_backward(gradient.contiguous(), *saved, weight, *_sizes(gradient), parts, mask)

    def elementwise(self, saved: tuple[Tensor, ...], gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        values, mean, rstd = saved
        examples, channels, _ = _sizes(values)
        flat = gradient.reshape(examples, channels, -1)
        bias = flat.sum(2, dtype=accumulator(gradient.dtype))
        weight = None
        if "weight" in self.watched:
            weight = torch.linalg.vecdot(flat.to(bias.dtype), values.view_as(flat).to(bias.dtype))
            of_groups = (examples, self.module.num_groups, -1)
            weight = (weight.view(of_groups) - bias.view(of_groups) * mean.unsqueeze(2)) * rstd.unsqueeze(2)
        return weight, bias if "bias" in self.watched else None


def _sizes(values: Tensor) -> tuple[int, int, int]:
    """Examples, channels and positions."""
    return values.shape[0], values.shape[1], values[0, 0].numel()
