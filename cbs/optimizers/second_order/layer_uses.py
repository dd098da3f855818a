"""Record the inputs and outputs of a model's layers in a forward pass, and the gradients that reach them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.functional import pad

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Layer = nn.Linear | nn.Embedding | Convolution


@dataclass(frozen=True)
class Use:
    """One call of a layer.

    Attributes:
        module: the layer.
        inputs: what the weight is multiplied with, ``[positions, columns]``: the inputs of a Linear or the patches of a
            convolution; for an Embedding the indices, ``[positions]``.
        edge: graph edge of its output; stays valid if the output is then changed in place.
    """

    module: Layer
    inputs: Tensor
    edge: GradientEdge

    def gradients(self, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to the output as a matrix, ``[positions, features]``."""
        if isinstance(self.module, Convolution):
            dims = len(self.module.kernel_size)
            gradient = gradient.reshape(-1, *gradient.shape[-1 - dims :]).flatten(2).transpose(1, 2)
        gradient = gradient.reshape(-1, gradient.shape[-1]).to(self.module.weight.dtype)
        if isinstance(self.module, nn.Embedding) and self.module.padding_idx is not None:
            gradient = gradient * (self.inputs != self.module.padding_idx)[:, None]
        return gradient

    def weight_gradient(self, gradients: Tensor) -> Tensor:
        """Return the contribution of this call to the gradient of the weight, in the shape of the weight."""
        if isinstance(self.module, nn.Embedding):
            return torch.zeros_like(self.module.weight).index_add_(0, self.inputs, gradients)
        return (gradients.T @ self.inputs).view_as(self.module.weight)


@contextmanager
def recorded_uses(model: nn.Module) -> Iterator[list[Use]]:
    """Record every differentiable call of a Linear, convolution without groups, or Embedding inside the block.

    Hooks are on the modules of ``model`` inside the block only.
    """
    uses: list[Use] = []

    def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if output.requires_grad:
            inputs = args[0] if args else kwargs["input"]
            uses.append(Use(module, read(module, inputs.detach()), get_gradient_edge(output)))

    supported = [module for module in model.modules() if is_supported(module)]
    handles = [module.register_forward_hook(note, with_kwargs=True) for module in supported]
    try:
        yield uses
    finally:
        for handle in handles:
            handle.remove()


def is_supported(module: nn.Module) -> bool:
    """Whether the curvature of the module's weight can be factored."""
    if isinstance(module, Convolution):
        return module.groups == 1
    return isinstance(module, nn.Linear | nn.Embedding)


def read(module: Layer, inputs: Tensor) -> Tensor:
    """Return the inputs in the form of :attr:`Use.inputs`."""
    if isinstance(module, nn.Embedding):
        return inputs.reshape(-1)
    inputs = inputs.to(module.weight.dtype)
    return patches(module, inputs) if isinstance(module, Convolution) else inputs.reshape(-1, inputs.shape[-1])


def patches(module: Convolution, inputs: Tensor) -> Tensor:
    """Return the patches that the kernel of a convolution is multiplied with, ``[places, columns]``."""
    dims = len(module.kernel_size)
    inputs = inputs.reshape(-1, *inputs.shape[-1 - dims :])
    if module.padding == "same":
        reach = [dilation * (size - 1) for size, dilation in zip(module.kernel_size, module.dilation, strict=True)]
        padding = [(total // 2, total - total // 2) for total in reach]
    elif module.padding == "valid":
        padding = [(0, 0)] * dims
    else:
        padding = [(amount, amount) for amount in module.padding]  # type: ignore[misc]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    windows = pad(inputs, [amount for both in reversed(padding) for amount in both], mode=mode)
    for place in range(dims):
        size, dilation, stride = module.kernel_size[place], module.dilation[place], module.stride[place]
        windows = windows.unfold(2 + place, dilation * (size - 1) + 1, stride)[..., ::dilation]
    # [examples, channels, *places, *kernel] -> [examples, *places, channels, *kernel]
    return windows.movedim(1, 1 + dims).flatten(0, dims).flatten(1)
