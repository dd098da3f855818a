r"""The small-batch side of one step, added up group by group.

The examples of a step fall into groups. All sources follow one convention: the contributions :math:`c_j` of the groups
**add up** to the gradient of the step's mean loss, which is what an optimizer finds in ``.grad`` (so a loss that is
divided by the number of micro-batches, as usual under accumulation, is right). The mean gradient of a group of
:math:`b_j` out of B examples is then :math:`g_j = c_j B / b_j`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbs.noise_scale.geometries.base import Geometry, Statistics, scale_


@dataclass(kw_only=True)
class Small:
    r"""The small-batch side of one step.

    A group of :math:`b_j` out of B examples has the weight :math:`w_j = b_j/B` that it has in the step's mean gradient,
    so that the weighted mean of :math:`T(g_j)` exceeds :math:`T(g)` by a variance, which is never negative.

    Attributes:
        statistics: per geometry, in the order the source was given them, one entry per watched and covered tensor: the
            weighted mean of T over the mean gradients of the groups, :math:`\sum_j w_j T(g_j) = \sum_j T(c_j)/w_j`;
            zeros where no group reached the parameter tensor.
        groups: number of groups.
        size: effective size of the groups in examples, :math:`1/\sum_j (w_j/b_j)`, an M-th part of the examples.
        examples: of the step, or their effective number over ranks of unequal batches.
    """

    statistics: list[Statistics]
    groups: int
    size: float
    examples: float


class GroupSums:
    """Sums of T over the groups of a step, each divided by its number of examples.

    Norms come in one by one during backward passes and are squared, weighted and added up in a few operations at the
    end: on small models the time goes into dispatch.

    Args:
        parameters: the parameter tensors, by index.
        watched: indices of those that count.
        geometries: what to measure.

    Attributes:
        by_norm: whether a geometry wants the norms of a parameter tensor, by index.
        by_value: places of the geometries that want more than the norms of a parameter tensor, by index.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], watched: Sequence[int], geometries: Sequence[Geometry]
    ) -> None:
        self._parameters = parameters
        self._geometries = geometries
        self._covered = [[index for index in watched if geometry.covers(index)] for geometry in geometries]
        wanted = [
            [place for place, geometry in enumerate(geometries) if geometry.covers(index)]
            for index in range(len(parameters))
        ]
        self.by_norm = [any(geometries[place].norms_suffice for place in places) for places in wanted]
        self.by_value = [[place for place in places if not geometries[place].norms_suffice] for places in wanted]
        self._layout: tuple[tuple[int, ...], tuple[float, ...]] = (), ()
        self.forget()

    def forget(self) -> None:
        """Start a new step."""
        self._norms: list[tuple[int, float, Tensor]] = []
        self._values: list[dict[int, Tensor]] = [{} for _ in self._geometries]

    def add(self, index: int, size: int, contributions: Tensor) -> None:
        """Add groups of a parameter tensor.

        Args:
            index: of the parameter tensor.
            size: examples per group.
            contributions: shape ``[groups, *parameter.shape]``.
        """
        if self.by_norm[index]:
            dtype = torch.float32 if contributions.dtype.itemsize < 4 else contributions.dtype
            self.add_norm(index, size, torch.linalg.vector_norm(contributions, dtype=dtype))
        for place in self.by_value[index]:
            value = self._geometries[place].statistic(index, contributions).mul_(1.0 / size)
            table = self._values[place]
            table[index] = table[index].add_(value) if index in table else value

    def add_norm(self, index: int, size: int, norm: Tensor) -> None:
        """Add groups whose norm, that of all of them together, is all that is wanted."""
        self._norms.append((index, 1.0 / size, norm))

    def small(self, groups: int, examples: int) -> Small:
        """The sums so far.

        Args:
            groups: number of all groups of the step.
            examples: of the step.
        """
        statistics: list[Statistics] = []
        for geometry, covered, table in zip(self._geometries, self._covered, self._values, strict=True):
            if geometry.norms_suffice:
                squares = self._squares()
                statistics.append(squares if len(covered) == len(squares) else squares[covered])
                continue
            for index in covered:
                if index not in table:
                    table[index] = geometry.statistic(index, torch.zeros_like(self._parameters[index].detach())[None])
            statistics.append([table[index] for index in covered])
        for entries in statistics:
            scale_(entries, float(examples))
        return Small(statistics=statistics, groups=groups, size=examples / groups, examples=examples)

    def _squares(self) -> Tensor:
        """Sums of squared norms of all parameter tensors, float64; fresh."""
        device = self._parameters[0].device
        sums = torch.zeros(len(self._parameters), dtype=torch.float64, device=device)
        if not self._norms:
            return sums
        indices, weights, norms = zip(*self._norms, strict=True)
        if self._layout != (indices, weights):  # it seldom changes from one step to the next
            self._layout = indices, weights
            self._targets = torch.tensor(indices, device=device)
            self._weights = torch.tensor(weights, dtype=torch.float64, device=device)
        stacked = torch.stack([norm.to(device) for norm in norms]).double()
        return sums.index_add_(0, self._targets, self._weights * stacked.square())
