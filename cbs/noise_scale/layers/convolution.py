"""``nn.Conv1d``, ``nn.Conv2d`` and ``nn.Conv3d``: the gradient of the filters, group by group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator
from cbs.noise_scale.layers.layer import Layer

FEW_POSITIONS = 32
"""Positions of an output up to which one call per example is faster than one with their channels side by side."""


class ConvolutionWeight(Contribution):
    """Contributions of groups to the filters.

    Args:
        module: the convolution.
        groups: number of groups.
        inputs: shape ``[examples, in, *spatial]``.
        gradients: gradients of the outputs, shape ``[examples, out, *spatial]``.
    """

    def __init__(self, module: Any, groups: int, inputs: Tensor, gradients: Tensor) -> None:
        self.groups = groups
        self.nbytes = module.weight.numel() * gradients.element_size()
        self._module = module
        self._inputs = inputs
        self._gradients = gradients
        self._weight = module.weight.detach().to(gradients.dtype)

    def dense(self, start: int, stop: int) -> Tensor:
        size = len(self._inputs) // self.groups
        if size > 1 or self._gradients[0, 0].numel() <= FEW_POSITIONS:
            return torch.stack([self._of(slice(group * size, (group + 1) * size)) for group in range(start, stop)])
        weight = self._weight.new_empty((stop - start) * len(self._weight), *self._weight.shape[1:])  # for its size
        gradients, inputs = (part[start:stop].flatten(0, 1)[None] for part in (self._gradients, self._inputs))
        found = self._gradient(gradients, inputs, weight, (stop - start) * self._module.groups)
        return found.view(stop - start, *self._weight.shape)

    def total(self) -> Tensor:
        return self._of(slice(None))

    def merged(self, by: int) -> Contribution:
        return ConvolutionWeight(self._module, self.groups // by, self._inputs, self._gradients)

    def _of(self, part: slice) -> Tensor:
        """The gradient of some examples together."""
        return self._gradient(self._gradients[part], self._inputs[part], self._weight, self._module.groups)

    def _gradient(self, gradients: Tensor, inputs: Tensor, weight: Tensor, groups: int) -> Tensor:
        module = self._module
        return torch.ops.aten.convolution_backward(
            gradients,
            inputs,
            weight,
            None,
            module.stride,
            module.padding,
            module.dilation,
            False,
            [0] * len(module.stride),
            groups,
            [False, True, False],
        )[1]


@LAYERS.register("convolution")
class Convolution(Layer):
    """Watches a convolution with explicit padding by zeros, transposed ones excepted."""

    types = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    names = ("weight", "bias")

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        # A subclass may keep forward and compute something else in what that calls, as with standardised weights.
        own: Any = type(module)
        kept = any(own._conv_forward is kind._conv_forward for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        zeros = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return cls.names if kept and zeros else ()

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if input.ndim != self.module.weight.ndim:
            raise ConfigError(
                f"layer {self.name!r} is given a single example without a batch dimension; "
                "add one, or use the source 'accumulation'"
            )
        output = self.module._conv_forward(input, self.value("weight"), self.value("bias"))
        return output, (input.to(output.dtype),)

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        found: dict[str, Contribution] = {}
        if "weight" in self.watched:
            found["weight"] = ConvolutionWeight(self.module, groups, saved[0], gradient)
        if "bias" in self.watched:
            positions = gradient.reshape(groups, -1, gradient.shape[1], gradient[0, 0].numel())
            found["bias"] = Dense(positions.sum((1, 3), dtype=accumulator(gradient.dtype)))
        return found
