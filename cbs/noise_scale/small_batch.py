r"""The small-batch side of one step, accumulated group by group.

The examples of a step fall into groups. All sources follow one convention: the contributions :math:`c_j` of the groups
**add up** to the gradient of the step's mean loss, which an optimizer gets in ``.grad``. (So dividing the loss by the
number of micro-batches, as usual under accumulation, is right.) The mean gradient of a group of :math:`b_j` out of B
examples is then :math:`g_j = c_j B / b_j`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbs.noise_scale.geometries.base import Geometry, as_real
from cbs.noise_scale.moments import Sizes


@dataclass(kw_only=True)
class Small:
    r"""The small-batch side of one step.

    A group of :math:`b_j` out of B examples has the weight :math:`w_j = b_j/B` that it has in the step's mean gradient,
    so that the weighted mean of :math:`T(g_j)` exceeds :math:`T(g)` by a variance, which is never negative.

    Attributes:
        statistics: per geometry, in the order in which the source received them, one entry per covered tensor: the
            weighted mean of T over the mean gradients of the groups, :math:`\sum_j w_j T(g_j) = \sum_j T(c_j)/w_j`;
            zeros where no group contributed to the parameter tensor.
        within: the same for cells inside these groups, where examples belong together: between them there is only the
            noise of the members of a group.
        sizes: batch sizes; the effective size of the groups is :math:`1/\sum_j (w_j/b_j)`, with M groups a M-th part of
            the examples.
    """

    statistics: list[list[Tensor]]
    sizes: Sizes
    within: Small | None = None


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

    def add(self, index: int, size: int, contributions: Tensor) -> None:
        """Add the contributions of groups to the gradient of a parameter tensor.

        Args:
            index: index of the parameter tensor.
            size: number of examples per group.
            contributions: shape ``[groups, *parameter.shape]``.
        """
        for geometry, sums in zip(self._geometries, self._sums, strict=True):
            if geometry.covers(index):
                add_to(sums, index, geometry.statistic(index, as_real(contributions)).mul_(1.0 / size))

    def discard(self, indices: Iterable[int]) -> None:
        """Forget what was added to parameter tensors."""
        for sums in self._sums:
            for index in indices:
                sums.pop(index, None)

    def small(self, groups: int, examples: int) -> Small:
        """Return the small-batch side of the step from the sums so far.

        Args:
            groups: number of groups in the step.
            examples: number of examples in the step.
        """
        statistics = []
        for geometry, sums in zip(self._geometries, self._sums, strict=True):
            covered = [index for index in range(len(self._parameters)) if geometry.covers(index)]
            for index in covered:
                if index not in sums:
                    zeros = torch.zeros_like(self._parameters[index].detach())[None]
                    sums[index] = geometry.statistic(index, as_real(zeros))
            statistics.append([sums[index].mul_(examples) for index in covered])
        return Small(statistics=statistics, sizes=Sizes(small=examples / groups, big=examples, groups=groups))


def add_to(sums: dict[int, Tensor], key: int, value: Tensor) -> None:
    """Add a tensor to an entry of a dictionary; the first one is kept itself."""
    sums[key] = sums[key] + value if key in sums else value
