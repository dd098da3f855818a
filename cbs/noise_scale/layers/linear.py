"""``nn.Linear``: one product of activations and output gradients per group, instead of one for all groups."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from cbs.noise_scale.layers import LAYERS
from cbs.noise_scale.layers.contribution import Contribution, Dense, accumulator, product
from cbs.noise_scale.layers.layer import Layer

GRAM_ADVANTAGE = 32
"""Multiplications a group may spend on Gram matrices, per entry of the weight whose gradient need not be written."""


class LinearWeight(Contribution):
    r"""Contributions :math:`\delta_j^\top a_j` of groups j to a weight matrix.

    Args:
        inputs: activations a, shape ``[groups, rows, in]``.
        gradients: gradients of the outputs, :math:`\delta`, shape ``[groups, rows, out]``.
    """

    def __init__(self, inputs: Tensor, gradients: Tensor) -> None:
        self.inputs = inputs
        self.gradients = gradients
        self.groups = inputs.shape[0]
        self.nbytes = inputs.shape[2] * gradients.shape[2] * inputs.element_size()

    def dense(self, start: int, stop: int) -> Tensor:
        return torch.bmm(self.gradients[start:stop].mT, self.inputs[start:stop])

    def total(self) -> Tensor:
        return self.gradients.flatten(0, 1).t() @ self.inputs.flatten(0, 1)

    def merged(self, by: int) -> Contribution:
        return LinearWeight(*(part.unflatten(0, (-1, by)).flatten(1, 2) for part in (self.inputs, self.gradients)))

    def square(self) -> Tensor | None:
        r"""Gram form :math:`\sum_j \sum_{tu} (a_{jt} \cdot a_{ju}) (\delta_{jt} \cdot \delta_{ju})`."""
        _, rows, fan_in = self.inputs.shape
        fan_out = self.gradients.shape[2]
        if rows**2 * (fan_in + fan_out) > GRAM_ADVANTAGE * fan_in * fan_out:
            return None
        return product(torch.bmm(self.inputs, self.inputs.mT), torch.bmm(self.gradients, self.gradients.mT))


@LAYERS.register("linear")
class Linear(Layer):
    """Watches an ``nn.Linear``."""

    types: ClassVar[tuple[type[nn.Module] | str, ...]] = (nn.Linear,)
    names = ("weight", "bias")
    transposed = False

    def run(self, input: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight: Any = self.value("weight")
        output = linear(input, weight.t() if self.transposed else weight, self.value("bias"))
        return output, (input.to(output.dtype),)

    def contributions(self, groups: int, saved: tuple[Tensor, ...], gradient: Tensor) -> dict[str, Contribution]:
        gradients = gradient.reshape(groups, -1, gradient.shape[-1])
        found: dict[str, Contribution] = {}
        if "weight" in self.watched:
            sides = saved[0].reshape(groups, -1, saved[0].shape[-1]), gradients
            found["weight"] = LinearWeight(*(sides[::-1] if self.transposed else sides))
        if "bias" in self.watched:
            found["bias"] = Dense(gradients.sum(1, dtype=accumulator(gradients.dtype)))
        return found


@LAYERS.register("conv1d_of_transformers")
class TransposedLinear(Linear):
    """Watches the linear layer of GPT-2 in transformers, whose weight is ``[in, out]``."""

    types = ("transformers.pytorch_utils.Conv1D",)
    transposed = True
