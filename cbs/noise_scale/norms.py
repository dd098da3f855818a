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
        self._layout: _Layout = (((), ()), nothing, nothing)
        self._squared_layout: _Layout = self._layout
        self.forget()

    def forget(self) -> None:
        """Start again from zero."""
        self._norms: list[tuple[int, float, Tensor]] = []
        self._squares: list[tuple[int, float, Tensor]] = []

    def add_norm(self, index: int, weight: float, norm: Tensor) -> None:
        """Add ``weight * norm ** 2`` to parameter tensor ``index``."""
        self._norms.append((index, weight, norm))

    def add_square(self, index: int, weight: float, square: Tensor) -> None:
        """Add ``weight * square`` to parameter tensor ``index``."""
        self._squares.append((index, weight, square))

    def total(self, indices: Sequence[int]) -> Tensor:
        """The sums so far of some parameter tensors, float64; fresh."""
        sums = torch.zeros(self._parameters, dtype=torch.float64, device=self._device)
        if self._norms:
            self._layout, targets, weights, values = self._stacked(self._norms, self._layout)
            sums.index_add_(0, targets, weights * values.square())
        if self._squares:
            self._squared_layout, targets, weights, values = self._stacked(self._squares, self._squared_layout)
            sums.index_add_(0, targets, weights * values)
        return sums if len(indices) == self._parameters else sums[list(indices)]

    def _stacked(
        self, entries: list[tuple[int, float, Tensor]], layout: _Layout
    ) -> tuple[_Layout, Tensor, Tensor, Tensor]:
        indices, weights, values = zip(*entries, strict=True)
        # From one step to the next, the layout seldom changes.
        if layout[0] != (indices, weights):
            targets = torch.tensor(indices, device=self._device)
            layout = ((indices, weights), targets, torch.tensor(weights, dtype=torch.float64, device=self._device))
        if any(value.device != self._device for value in values):
            values = tuple(value.to(self._device) for value in values)
        return layout, layout[1], layout[2], torch.stack(values).double()


def norms(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Euclidean norms of tensors, in float32 or better: one call for all."""
    values = list(tensors)
    dtypes = {value.dtype for value in values}
    dtype = torch.promote_types(dtypes.pop(), torch.float32) if len(dtypes) == 1 else torch.float64
    return torch._foreach_norm(values, 2, dtype)
