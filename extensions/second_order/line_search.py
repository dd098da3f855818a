"""Line search: the fraction of a proposed step with the lowest loss on examples that were not used for the proposal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cbs.optimizers.problem import Batch, ModelFunction, count_examples, micro_batches

FRACTIONS = tuple(2.0 ** (-power / 2) for power in range(5))
"""Fractions of Abreu et al. 2025 (arXiv 2510.09378): 1 to 1/4 in ratios of the square root of 2."""


def best_fraction(
    function: ModelFunction, start: Sequence[Tensor], end: Sequence[Tensor], batch: Batch
) -> tuple[float, list[Tensor]]:
    """Return the fraction of the way from ``start`` to ``end`` with the lowest mean loss, and the parameters there.

    For equal losses the larger fraction wins; NaN counts as infinite, and if all losses are infinite the fraction is 1,
    so that divergence is visible.

    Args:
        function: the model and its loss.
        start: parameters at fraction 0.
        end: parameters at fraction 1.
        batch: examples for the mean loss.
    """
    points = [
        [torch.lerp(one, other, fraction) for one, other in zip(start, end, strict=True)] for fraction in FRACTIONS
    ]
    losses = torch.stack([mean_loss(function, point, batch) for point in points])
    best = int(losses.nan_to_num(nan=float("inf")).argmin())
    return FRACTIONS[best], points[best]


@torch.no_grad()
def mean_loss(function: ModelFunction, values: Sequence[Tensor], batch: Batch) -> Tensor:
    """Return the mean loss over the batch with ``values`` as parameters, a scalar."""
    problem = function.problem
    parts = micro_batches(batch, problem.micro_batch_size)
    total = torch.stack([problem.output_losses(function.at(values, part), part).double().sum() for part in parts])
    return total.sum() / count_examples(batch)
