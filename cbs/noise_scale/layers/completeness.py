"""Whether the gradient of a parameter tensor is all that its layers contribute to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.layers.contribution import accumulator

ROUNDINGS = 64
"""Rounding errors of the largest gradient that another one may differ by from what it is compared with."""


class Completeness:
    """Compares the gradients that backward passes find with what layers returned: by value the first time, by address
    in memory from then on.

    Args:
        names: of the parameter tensors, by index.

    Attributes:
        compared: indices whose gradients are compared by value in every backward pass.
        largest: norm of the largest gradient met in a comparison of this step.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.compared: set[int] = set()
        self._names = names
        self._complete: set[int] = set()
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self.largest = 0.0
        self._returned: dict[int, list[Tensor | int]] = {}

    def returned(self, index: int, gradient: Tensor) -> None:
        """Take notice of what a layer returns as the gradient of a parameter tensor."""
        # A reference to the gradient would keep autograd from moving it into .grad.
        self._returned.setdefault(index, []).append(gradient.data_ptr() if index in self._complete else gradient)

    def check(self, index: int, gradient: Tensor) -> None:
        """Compare the gradient that a backward pass found.

        Raises:
            ConfigError: if it differs, because the parameter is used elsewhere, too, or a hook changes its gradient.
        """
        returned = self._returned.pop(index, [])
        if len(returned) == 1 and index in self._complete and returned[0] == gradient.data_ptr():
            return
        tensors = [tensor for tensor in returned if isinstance(tensor, Tensor)]
        if len(returned) > 1 and not tensors:
            return
        if not bool(gradient.isfinite().all()):
            return
        if not tensors or not self._agree(gradient, tensors):
            raise ConfigError(
                f"the gradient of {self._names[index]!r} is not what its layer contributes to it: it is used outside "
                "the layer, the layer mixes examples or draws random numbers, or a hook changes its gradient; use the "
                "source 'accumulation'"
            )
        if index not in self.compared:
            self._complete.add(index)

    def _agree(self, gradient: Tensor, tensors: Sequence[Tensor]) -> bool:
        """Whether a gradient is the sum of some tensors, up to rounding.

        A gradient that is zero but for rounding, as that of a bias before a normalisation, has no digits to compare;
        what matters is that it is small beside other gradients.
        """
        rounding = torch.finfo(gradient.dtype).eps
        stacked = torch.stack(list(tensors)).to(accumulator(gradient.dtype))
        difference = torch.linalg.vector_norm(gradient - stacked.sum(0)).item()
        size = torch.linalg.vector_norm(stacked).item()
        self.largest = max(self.largest, size)
        return difference <= rounding**0.5 * size + ROUNDINGS * rounding * self.largest
