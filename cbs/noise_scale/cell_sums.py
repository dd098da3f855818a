"""The gradients of the cells of a backward pass, added up as they come."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.geometries.l2 import L2
from cbs.noise_scale.grouping import Cells
from cbs.noise_scale.small_batch import GroupSums, Small

TOLERANCE, FLOOR = 1e-3, 1e-5
"""How much a gradient may differ from the sum of its cells, relative to their norms, and to those of all parameters:
gradients that vanish, as that of a bias before a normalisation, consist of rounding."""

ROUNDINGS = 4
"""The same in roundings, where they are coarser."""


class CellSums:
    """What is wanted of the cells of a step, see :class:`~cbs.noise_scale.grouping.Cells`.

    All cells of a backward pass but one come by :meth:`put`. The gradient of training comes by :meth:`found`, which
    leaves the last. No more is kept than their sum and the cells of a part, unless several passes add up to a cell.

    Args:
        parameters: the parameter tensors, by index.
        geometries: what to measure.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], geometries: Sequence[Geometry]) -> None:
        self._sums, self._within = GroupSums(parameters, geometries), GroupSums(parameters, [L2()])
        self._parameters = parameters
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self._sums.forget()
        self._within.forget()
        self._passes: list[Cells] = []
        self._compared: list[tuple[int, Tensor, Tensor]] = []
        self._clear()

    def begin(self, cells: Cells, *, complete: bool, several: bool) -> None:
        """Start a backward pass.

        Args:
            cells: its own.
            complete: whether the last cell comes by :meth:`put`, too, to be compared with what the others leave.
            several: whether several forward passes over the same examples may add to its cells.
        """
        self._passes.append(cells)
        self._clear()
        self._complete, self._several = complete, several

    def _clear(self) -> None:
        self._held: dict[int, dict[int, Tensor]] = {}
        self._total: dict[int, Tensor] = {}
        self._size: dict[int, Tensor] = {}
        self._parts_done: dict[int, int] = {}

    def put(self, cell: int, gradients: Sequence[Tensor | None]) -> None:
        """Take the gradients of a cell."""
        part, place = divmod(cell, self._passes[-1].of_part)
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            held = self._held.setdefault(index, {})
            if self._sums.wanted[index] or self._complete:
                value = _wide(gradient)
                held[cell] = held[cell] + value if cell in held else value
                if self._complete:
                    size = torch.linalg.vector_norm(value)
                    self._size[index] = self._size[index] + size if index in self._size else size
        last = part == self._passes[-1].number // self._passes[-1].of_part - 1
        if place == self._passes[-1].of_part - 1 and not last and not self._several:
            for index in self._held:
                self._finish(index, part)

    def found(self, index: int, gradient: Tensor) -> bool:
        """Take the gradient of training; ``False`` if none of a cell came, of several."""
        cells = self._passes[-1]
        if index not in self._held and cells.number > 1:
            return False
        held, whole = self._held.setdefault(index, {}), _wide(gradient)
        last = cells.number - 1
        rest = whole - self._total[index] if index in self._total else whole
        for value in (held[cell] for cell in held if cell != last):
            rest = rest - value
        if last in held:
            self._compared.append((index, torch.linalg.vector_norm(rest - held[last]), self._size[index]))
        elif self._complete:  # of an example without a gradient
            self._compared.append((index, torch.linalg.vector_norm(rest), self._size.get(index, rest.new_zeros(()))))
        held[last] = rest  # whether or not it is compared
        for part in range(self._parts_done.get(index, 0), cells.number // cells.of_part):
            self._finish(index, part)
        return True

    def wrong(self, eps: float) -> int | None:
        """Index of a parameter tensor whose gradient is not the sum of its cells, wherever all were put.

        Args:
            eps: of the coarsest type of number that the passes compute in.
        """
        if not self._compared:
            return None
        indices = [index for index, _, _ in self._compared]
        table = torch.stack([torch.stack((apart, size)).double().cpu() for _, apart, size in self._compared])
        apart, size = table.unbind(1)
        tolerance, floor = (max(least, ROUNDINGS * eps) for least in (TOLERANCE, FLOOR))
        beyond = apart - tolerance * size - floor * torch.linalg.vector_norm(size)
        worst = int(beyond.argmax())
        return indices[worst] if float(beyond[worst]) > 0 else None

    def small(self, *, within: bool) -> Small | None:
        """The sums of the step; ``None`` if there was no backward pass.

        Args:
            within: whether parts have cells.
        """
        if not self._passes:
            return None
        parts, cells, examples = (
            sum(values)
            for values in zip(
                *((each.number // each.of_part, each.number, each.examples) for each in self._passes), strict=True
            )
        )
        small = self._sums.small(parts, examples)
        if within:
            small.within = self._within.small(cells, examples)
        return small

    def _finish(self, index: int, part: int) -> None:
        """Count all cells of a part."""
        self._parts_done[index] = part + 1
        cells, held = self._passes[-1], self._held[index]
        own = range(part * cells.of_part, (part + 1) * cells.of_part)
        zero = torch.zeros_like(_wide(self._parameters[index]))
        values = torch.stack([held.pop(cell, zero) for cell in own])
        if cells.of_part > 1:
            self._within.add(index, cells.size, values)
        whole = values.sum(0)
        self._sums.add(index, cells.size * cells.of_part, whole[None])
        self._total[index] = self._total[index] + whole if index in self._total else whole


def _wide(tensor: Tensor) -> Tensor:
    """In float32 at least."""
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return dense.detach().to(torch.promote_types(tensor.dtype, torch.float32))
