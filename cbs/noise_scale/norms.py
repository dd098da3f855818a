"""Weighted sums of squared norms, put off until a step is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_Layout = tuple[tuple[tuple[int, ...], tuple[float, ...]], Tensor, Tensor]
"""Indices and weights of the entries, as they came and as tensors."""


class NormSums:
    """Weighted sums of squared norms per parameter tensor.

    Norms come in one by one during backward passes and are squared, weighted and added up in a few operations at the
    end: on small models the time goes into dispatch.

    Args:
        parameters: number of parameter tensors.
        device: of the sums.
    """

    def __init__(self, parameters: int, device: torch.device) -> None:
        self._parameters = parameters
        self._device = device
        nothing = torch.empty(0)
        self._layouts: dict[int, _Layout] = dict.fromkeys((1, 2), (((), ()), nothing, nothing))
        self.forget()

    def forget(self) -> None:
        """Start again from zero."""
        self._entries: dict[int, list[tuple[int, float, Tensor]]] = {1: [], 2: []}

    def add_norm(self, index: int, weight: float, norm: Tensor) -> None:
        """Add ``weight * norm ** 2`` to parameter tensor ``index``."""
        self._entries[2].append((index, weight, norm))

    def add_square(self, index: int, weight: float, square: Tensor) -> None:
        """Add ``weight * square`` to parameter tensor ``index``."""
        self._entries[1].append((index, weight, square))

    def total(self, indices: Sequence[int]) -> Tensor:
        """The sums so far of some parameter tensors, float64; fresh."""
        sums = torch.zeros(self._parameters, dtype=torch.float64, device=self._device)
        for power, entries in self._entries.items():
            if entries:
                targets, weights, values = self._stacked(power)
                sums.index_add_(0, targets, weights * values**power)
        return sums if len(indices) == self._parameters else sums[list(indices)]

    def _stacked(self, power: int) -> tuple[Tensor, Tensor, Tensor]:
        indices, weights, values = zip(*self._entries[power], strict=True)
        # From one step to the next, the layout seldom changes.
        if self._layouts[power][0] != (indices, weights):
            targets = torch.tensor(indices, device=self._device)
            scales = torch.tensor(weights, dtype=torch.float64, device=self._device)
            self._layouts[power] = (indices, weights), targets, scales
        if any(value.device != self._device for value in values):
            values = tuple(value.to(self._device) for value in values)
        return *self._layouts[power][1:], torch.stack(values).double()


def norms(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Euclidean norms of tensors, in float32 or better: one call for all."""
    values = list(tensors)
    dtypes = {value.dtype for value in values}
    dtype = torch.promote_types(dtypes.pop(), torch.float32) if len(dtypes) == 1 else torch.float64
    return torch._foreach_norm(values, 2, dtype)
