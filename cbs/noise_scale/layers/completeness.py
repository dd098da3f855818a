"""Whether the gradient of a parameter tensor is all that its layers contribute to it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.noise_scale.layers.contribution import accumulator


class Completeness:
    """Compares the gradients that backward passes find with what layers returned.

    By value the first time. From then on by identity where a parameter tensor has one use, and where it has several,
    whose gradients autograd adds up, by value in some entries.

    Args:
        names: of the parameter tensors, by index.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._uses: dict[int, int] = {}
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self._returned: dict[int, list[Tensor | tuple[int, int]]] = {}

    def returned(self, index: int, gradient: Tensor) -> None:
        """Take notice of what a layer returns as the gradient of a parameter tensor."""
        uses = self._uses.get(index, 0)
        # A reference to the gradient would keep autograd from moving it into .grad.
        told = gradient if uses == 0 else _identity(gradient) if uses == 1 else _some_entries(gradient)
        self._returned.setdefault(index, []).append(told)

    def check(self, index: int, gradient: Tensor) -> ConfigError | None:
        """The error if the gradient that a backward pass found is another one, because the parameter is used elsewhere,
        too, or a hook changes its gradient."""
        returned, uses = self._returned.pop(index, []), self._uses.get(index, 0)
        if uses == 1 and len(returned) > 1:
            del self._uses[index]  # it has more uses now: by value in the next step
            return None
        if uses == 1 and returned == [_identity(gradient)]:
            return None
        found = _some_entries(gradient) if uses > 1 else gradient
        if not bool(found.isfinite().all()):
            return None
        tensors = [told for told in returned if isinstance(told, Tensor)]
        if not tensors or not _agree(found, tensors):
            return ConfigError(
                f"the gradient of {self._names[index]!r} is not what its layer contributes to it: it is used outside "
                "the layer, or a hook changes its gradient; use the source 'accumulation'"
            )
        self._uses.setdefault(index, len(returned))
        return None


def _identity(gradient: Tensor) -> tuple[int, int]:
    """Address and version, which is another one where autograd added something in place."""
    return gradient.data_ptr(), gradient._version


def _some_entries(gradient: Tensor) -> Tensor:
    """About 64 of them, evenly spaced."""
    return gradient.detach().reshape(-1)[:: max(1, gradient.numel() // 64)].clone()


def _agree(gradient: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether a gradient is the sum of some tensors, up to the rounding of the additions.

    In whatever precision these were computed, they are the very tensors that autograd adds up.
    """
    stacked = torch.stack(list(tensors)).to(accumulator(gradient.dtype))
    difference = torch.linalg.vector_norm(gradient - stacked.sum(0))
    rounding = len(tensors) * torch.finfo(gradient.dtype).eps
    return bool(difference <= rounding * torch.linalg.vector_norm(stacked))
