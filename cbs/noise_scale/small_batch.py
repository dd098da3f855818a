r"""The small-batch side of one step.

The examples of a step fall into groups. All sources follow one convention: the contributions :math:`c_j` of the groups
**add up** to the gradient of the step's mean loss, which is what an optimizer finds in ``.grad`` (so a loss that is
divided by the number of micro-batches, as usual under accumulation, is right). The mean gradient of a group of
:math:`b_j` out of B examples is then :math:`g_j = c_j B / b_j`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cbs.noise_scale.geometries.base import Geometry, Statistics


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


def gathered(
    geometry: Geometry, table: Mapping[int, Tensor], parameters: Sequence[nn.Parameter], indices: Iterable[int]
) -> list[Tensor]:
    """The statistic of every covered tensor among ``indices``, that of a zero gradient where ``table`` has none."""
    return [
        table[index]
        if index in table
        else geometry.statistic(index, torch.zeros_like(parameters[index].detach())[None])
        for index in indices
        if geometry.covers(index)
    ]
