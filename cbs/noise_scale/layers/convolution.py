"""``nn.Conv1d``, ``nn.Conv2d`` and ``nn.Conv3d``: the gradient of the filters, group by group."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv2d, conv3d, pad, unfold

from cbs.errors import ConfigError
from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator
from cbs.noise_scale.layers.layer import Layer

UNFOLDED_POSITIONS = 32
"""Positions of an output up to which unfolded activations are multiplied."""


_CONVOLUTIONS: dict[int, Any] = {3: conv1d, 4: conv2d, 5: conv3d}
"""By the dimensions of their inputs."""


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
        self._inputs, self._padding = _padded(module, inputs)
        self._gradients = gradients
        self._weight = module.weight.detach().to(gradients.dtype)

    def dense(self, start: int, stop: int) -> Tensor:
        size = self._inputs.shape[0] // self.groups
        if size == 1:
            return self._of_examples(slice(start, stop))
        return torch.stack([self._of(slice(group * size, (group + 1) * size)) for group in range(start, stop)])

    def total(self) -> Tensor:
        return self._of(slice(None))

    def _of(self, part: slice) -> Tensor:
        """The gradient of some examples together."""
        return self._gradient(self._gradients[part], self._inputs[part], self._weight, self._module.groups)

    def _of_examples(self, part: slice) -> Tensor:
        """The gradients of single examples: a product with unfolded activations where these are few, else one
        convolution with the channels of all examples side by side."""
        module, weight = self._module, self._weight
        gradients, inputs = self._gradients[part], self._inputs[part]
        examples, positions = len(gradients), gradients[0, 0].numel()
        if weight.ndim == 4 and module.groups == 1 and positions <= UNFOLDED_POSITIONS:
            columns = unfold(inputs, module.kernel_size, module.dilation, self._padding, module.stride)
            return torch.bmm(gradients.flatten(2), columns.mT).view(examples, *weight.shape)
        joined = weight.new_empty(examples * len(weight), *weight.shape[1:])  # of the size alone something is made
        gradients, inputs = (tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in (gradients, inputs))
        return self._gradient(gradients, inputs, joined, examples * module.groups).view(examples, *weight.shape)

    def _gradient(self, gradients: Tensor, inputs: Tensor, weight: Tensor, groups: int) -> Tensor:
        module = self._module
        return torch.ops.aten.convolution_backward(
            gradients,
            inputs,
            weight,
            None,
            module.stride,
            self._padding,
            module.dilation,
            False,
            [0] * len(module.stride),
            groups,
            [False, True, False],
        )[1]


def _padded(module: Any, inputs: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Inputs with the padding that is none of zeros alike on both sides, and what is left to pad."""
    if module.padding_mode == "zeros" and not isinstance(module.padding, str):
        return inputs, module.padding
    if not isinstance(module.padding, str):
        sides = [(entry, entry) for entry in module.padding]
    elif module.padding == "valid":
        sides = [(0, 0) for _ in module.stride]
    else:
        reach = [step * (size - 1) for step, size in zip(module.dilation, module.kernel_size, strict=True)]
        sides = [(whole // 2, whole - whole // 2) for whole in reach]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return pad(inputs, [entry for pair in reversed(sides) for entry in pair], mode=mode), (0,) * len(module.stride)


@LAYERS.register("convolution")
class Convolution(Layer):
    """Watches a convolution, transposed ones excepted."""

    types = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    names = ("weight", "bias")

    @classmethod
    def names_of(cls, module: nn.Module) -> tuple[str, ...]:
        # A subclass may keep forward and compute something else in what that calls, as with standardised weights.
        own: Any = type(module)
        kept = any(own._conv_forward is kind._conv_forward for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        return cls.names if kept else ()

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if input.ndim != self.module.weight.ndim:
            raise ConfigError(
                f"layer {self.name!r} is given a single example without a batch dimension; "
                "add one, or use the source 'accumulation'"
            )
        module: Any = self.module
        padded, padding = _padded(module, input)
        output = _CONVOLUTIONS[input.ndim](
            padded, self.value("weight"), self.value("bias"), module.stride, padding, module.dilation, module.groups
        )
        return output, (input.to(output.dtype),)

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        found: dict[str, Contribution] = {}
        if "weight" in self.watched:
            found["weight"] = ConvolutionWeight(self.module, groups, saved[0], gradient)
        if "bias" in self.watched:
            positions = gradient.reshape(groups, -1, gradient.shape[1], gradient[0, 0].numel())
            found["bias"] = Dense(positions.sum((1, 3), dtype=accumulator(gradient.dtype)))
        return found
