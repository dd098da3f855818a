"""Whether the gradient of a parameter tensor is all that its layers contribute to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.layers.contribution import accumulator


class Completeness:
    """Compares the gradients that backward passes find with what layers returned: by value the first time, by address
    in memory from then on.

    Args:
        names: of the parameter tensors, by index.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._complete: set[int] = set()
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self._returned: dict[int, list[Tensor | int]] = {}

    def returned(self, index: int, gradient: Tensor) -> None:
        """Take notice of what a layer returns as the gradient of a parameter tensor."""
        # A reference to the gradient would keep autograd from moving it into .grad.
        self._returned.setdefault(index, []).append(gradient.data_ptr() if index in self._complete else gradient)

    def check(self, index: int, gradient: Tensor) -> ConfigError | None:
        """The error if the gradient that a backward pass found is another one, because the parameter is used elsewhere,
        too, or a hook changes its gradient."""
        returned = self._returned.pop(index, [])
        known = index in self._complete
        if known and len(returned) == 1 and returned[0] == gradient.data_ptr():
            return None
        tensors = [tensor for tensor in returned if isinstance(tensor, Tensor)]
        if (known and len(returned) > 1) or not bool(gradient.isfinite().all()):
            return None
        if not tensors or not _agree(gradient, tensors):
            return ConfigError(
                f"the gradient of {self._names[index]!r} is not what its layer contributes to it: it is used outside "
                "the layer, or a hook changes its gradient; use the source 'accumulation'"
            )
        self._complete.add(index)
        return None


def _agree(gradient: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether a gradient is the sum of some tensors, up to the rounding of the additions.

    In whatever precision these were computed, they are the very tensors that autograd adds up.
    """
    stacked = torch.stack(list(tensors)).to(accumulator(gradient.dtype))
    difference = torch.linalg.vector_norm(gradient - stacked.sum(0))
    rounding = len(tensors) * torch.finfo(gradient.dtype).eps
    return bool(difference <= rounding * torch.linalg.vector_norm(stacked))
