r"""The small-batch side of one step, accumulated group by group.

The examples of a step fall into groups. All sources follow one convention: the contributions :math:`c_j` of the groups
**add up** to the gradient of the step's mean loss, which an optimizer gets in ``.grad``. (So dividing the loss by the
number of micro-batches, as usual under accumulation, is right.) The mean gradient of a group of :math:`b_j` out of B
examples is then :math:`g_j = c_j B / b_j`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from cbs.noise_scale.geometries import Geometry, as_real
from cbs.noise_scale.geometries.norms import L2
from cbs.noise_scale.grouping import Cells
from cbs.noise_scale.moments import Sizes

# Largest difference between a gradient and the sum of its cells, relative to the norms of the cells and, for the
# floor, to the norms of all parameters: that of a bias before a normalization is nothing but rounding error.
TOLERANCE, FLOOR = 1e-3, 1e-5

ROUNDINGS = 4  # Least value of either in machine epsilons


@dataclass(kw_only=True)
class Small:
    r"""The small-batch side of one step.

    A group of :math:`b_j` out of B examples has the weight :math:`w_j = b_j/B` that it has in the step's mean gradient,
    so that the weighted mean of :math:`T(g_j)` exceeds :math:`T(g)` by a variance, which is never negative.

    Attributes:
        statistics: per geometry, in the order in which the source received them, one entry per covered tensor: the
            weighted mean of T over the mean gradients of the groups, :math:`\sum_j w_j T(g_j) = \sum_j T(c_j)/w_j`;
            zeros where no group contributed to the parameter tensor.
        within: the same side of the cells inside these groups, if any; they differ by the noise of a group's members.
        weighted: where groups have other weights: then ``statistics`` are the sums of :math:`T(c_j)`.
        sizes: batch sizes; the effective size of the groups is :math:`1/\sum_j (w_j/b_j)`, with M groups a M-th part of
            the examples.
    """

    statistics: list[list[Tensor]]
    sizes: Sizes
    within: Small | None = None
    weighted: Weighted | None = None


@dataclass(frozen=True, kw_only=True)
class Weighted:
    r"""What is known of groups whose weights :math:`a_j` in the step's loss are not their shares of the examples.

    The loss of a step is then a sum over its groups divided by the sum of their weights, such as numbers of tokens. To
    first order, the noise of its gradient g is that of the residuals :math:`r_j = c_j - a_j g`, whose statistics are
    a sum of those at hand: :math:`\sum_j T(r_j) = \sum_j T(c_j) - [T(g + v) - T(g) - T(v)] + T(g) \sum_j a_j^2` with
    :math:`v = \sum_j a_j c_j`. Their expectation is :math:`1 - \sum_j a_j^2` times the noise of the step.

    Attributes:
        sums: v, by index of the parameter tensor.
        squares: sum of the squares of the weights.
    """

    sums: Mapping[int, Tensor]
    squares: float

    def statistics(
        self, geometry: Geometry, of_groups: Sequence[Tensor], gradients: Mapping[int, Tensor], groups: int
    ) -> list[Tensor]:
        """Return the statistics that :class:`Small` holds where groups weigh as much as their examples, per covered
        parameter tensor.

        Args:
            geometry: the geometry.
            of_groups: sums of :math:`T(c_j)` over the groups.
            gradients: g, by index, in the scale of the groups.
            groups: number of groups.
        """
        found = []
        for (index, gradient), each in zip(gradients.items(), of_groups, strict=True):
            whole = as_real(gradient)
            both = [whole, self.sums[index].to(whole)] if index in self.sums else [whole, torch.zeros_like(whole)]
            of_whole, of_sum, of_both = (geometry.statistic(index, one[None]) for one in (*both, both[0] + both[1]))
            residual = each - (of_both - of_whole - of_sum) + self.squares * of_whole
            found.append(of_whole + residual * ((groups - 1) / (1 - self.squares)))
        return found


class GroupSums:
    """Sums of T over the groups of a step, each divided by its number of examples.

    Args:
        parameters: the parameter tensors, by index.
        geometries: geometries whose T is summed.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], geometries: Sequence[Geometry]) -> None:
        self._parameters = parameters
        self._geometries = geometries
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self._sums: list[dict[int, Tensor]] = [{} for _ in self._geometries]
        self._vectors: dict[int, Tensor] = {}

    def add(self, index: int, size: int, contributions: Tensor, weight: float | None = None) -> None:
        """Add the contributions of groups of ``size`` examples to a gradient, shape ``[groups, *parameter.shape]``; or
        of one group with its weight, see :class:`Weighted`."""
        for geometry, sums in zip(self._geometries, self._sums, strict=True):
            if geometry.covers(index):
                statistic = geometry.statistic(index, as_real(contributions))
                add_to(sums, index, statistic.mul_(1.0 / size) if weight is None else statistic)
        if weight is not None:
            add_to(self._vectors, index, weight * as_real(_wide(contributions[0])))

    def discard(self, indices: Iterable[int]) -> None:
        """Forget what was added to parameter tensors."""
        for sums in self._sums:
            for index in indices:
                sums.pop(index, None)
        for index in indices:
            self._vectors.pop(index, None)

    def small(self, groups: int, examples: int, weights: Sequence[float] = ()) -> Small:
        """Return the small-batch side of a step with these numbers of groups and examples from the sums so far, and
        with the weights that were passed to :meth:`add`, one per group."""
        statistics = []
        for geometry, sums in zip(self._geometries, self._sums, strict=True):
            covered = [index for index in range(len(self._parameters)) if geometry.covers(index)]
            for index in covered:
                if index not in sums:
                    zeros = torch.zeros_like(self._parameters[index].detach())[None]
                    sums[index] = geometry.statistic(index, as_real(zeros))
            statistics.append([sums[index].mul_(1 if weights else examples) for index in covered])
        whole = sum(weights)
        sums_of = {index: vector / whole for index, vector in self._vectors.items()}
        return Small(
            statistics=statistics,
            sizes=Sizes(small=examples / groups, big=examples, groups=groups),
            weighted=Weighted(sums=sums_of, squares=sum((each / whole) ** 2 for each in weights)) if weights else None,
        )


class CellSums(GroupSums):
    """Sums over the cells of a step that the noise scale needs, see :class:`~cbs.noise_scale.grouping.Cells`.

    All cells of a backward pass but the last are passed to :meth:`put`. The gradient of training is passed to
    :meth:`found`; the last cell is what the others leave of it. Only the sum of the cells and the cells of one part are
    kept in memory, unless several forward passes contribute to a cell.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], geometries: Sequence[Geometry]) -> None:
        self._within = GroupSums(parameters, [L2()])
        super().__init__(parameters, geometries)

    def forget(self) -> None:
        super().forget()
        self._within.forget()
        self._parts, self._number, self._examples = 0, 0, 0
        self._weights: list[float] = []
        self._compared: list[tuple[int, Tensor, Tensor]] = []
        self._missing: set[int] = set()  # parameter tensors that training did not differentiate, but the cells did
        self._clear()

    def begin(self, cells: Cells, *, complete: bool, several: bool, weights: Tensor | None = None) -> None:
        """Start a backward pass.

        Args:
            complete: whether the last cell is passed to :meth:`put`, too, to be compared with what the others leave.
            several: whether several forward passes over the same examples may contribute to its cells.
            weights: weights of the examples in the loss, shape ``[examples]``, where they differ.
        """
        parts = range(cells.number // cells.of_part)
        self._of_parts = [None if weights is None else float(weights[cells.mask(part)].sum()) for part in parts]
        self._weights += [weight for weight in self._of_parts if weight is not None]
        self._cells, self._complete, self._several = cells, complete, several
        self._parts += cells.number // cells.of_part
        self._number += cells.number
        self._examples += cells.examples
        self._clear()

    def _clear(self) -> None:
        self._held: dict[int, dict[int, Tensor]] = {}
        self._total: dict[int, Tensor] = {}
        self._size: dict[int, Tensor] = {}
        self._parts_done: dict[int, int] = {}

    def put(self, cell: int, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of a cell, one per parameter tensor."""
        cells = self._cells
        part, place = divmod(cell, cells.of_part)
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            value = _wide(gradient)
            add_to(self._held.setdefault(index, {}), cell, value)
            self._missing.add(index)
            if cell < cells.number - 1:
                add_to(self._total, index, value)
            if self._complete:
                add_to(self._size, index, torch.linalg.vector_norm(value))
        if place == cells.of_part - 1 and cell < cells.number - 1 and not self._several:
            for index in self._held:
                self._finish(index, part)

    def found(self, index: int, gradient: Tensor) -> bool:
        """Add the gradient of training; return ``False`` if the pass has several cells and none of them was put."""
        cells = self._cells
        if index not in self._held and cells.number > 1:
            return False
        self._missing.discard(index)
        held, rest, last = self._held.setdefault(index, {}), _wide(gradient), cells.number - 1
        if index in self._total:
            rest = rest - self._total[index]
        if self._complete:
            apart = rest - held[last] if last in held else rest
            size = self._size.get(index, rest.new_zeros((), dtype=apart.abs().dtype))
            self._compared.append((index, torch.linalg.vector_norm(apart), size))
        held[last] = rest  # whether or not it is compared
        for part in range(self._parts_done.get(index, 0), cells.number // cells.of_part):
            self._finish(index, part)
        return True

    def wrong(self, eps: float) -> int | None:
        """Return the index of the tensor whose gradient differs most from the sum of its cells, if beyond tolerance.

        Only tensors all of whose cells were put are compared; ``None`` if they agree.

        Args:
            eps: machine epsilon of the coarsest dtype that the passes compute in.
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

    def whole(self) -> Small | None:
        """Return the small-batch side of the step; ``None`` if there was no backward pass."""
        if not self._parts:
            return None
        self.discard(self._missing)
        self._within.discard(self._missing)
        small = self.small(self._parts, self._examples, self._weights)
        if self._number > self._parts:
            small.within = self._within.small(self._number, self._examples)
        return small

    def _finish(self, index: int, part: int) -> None:
        """Add all cells of a part to the sums."""
        self._parts_done[index] = part + 1
        cells, held = self._cells, self._held[index]
        places = range(part * cells.of_part, (part + 1) * cells.of_part)
        values = [held.pop(place) for place in places if place in held]  # T of the others, which are zero, is zero
        if values and cells.of_part > 1:
            self._within.add(index, cells.size, torch.stack(values))
        if values:
            self.add(index, cells.size * cells.of_part, reduce(torch.add, values)[None], self._of_parts[part])


def _wide(tensor: Tensor) -> Tensor:
    """Return the tensor as a dense one in float32 or a wider dtype."""
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return dense.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def add_to(sums: dict[int, Tensor], key: int, value: Tensor) -> None:
    """Add a tensor to an entry of a dictionary; the first one is kept itself."""
    sums[key] = sums[key] + value if key in sums else value
