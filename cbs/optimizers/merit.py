"""MERIT: a ratio of largest entries for each row, column and tensor (ICML 2025, arXiv 2508.20577)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.trust_ratio import Bucket, TrustRatioOptimizer, flatten, unflatten


class MERIT(TrustRatioOptimizer):
    """Maximum-normalised elementwise ratio, arXiv 2508.20577, Algorithm 1, as in the authors' released code.

    With the moments m, v of a matrix w, not bias-corrected, and ``max`` over absolute values,

        d       = m / (sqrt(v) + eps) + weight_decay * w
        s(i, j) = max( max w(i, :) / max d(i, :),  max w(:, j) / max d(:, j),  max w / max d )
        w      <- w - lr * clip(s * d, -1, 1)

    so no entry moves by more than ``lr``. What the paper leaves open follows the released code:

    - s is 1 in every row and every column in which w or d is all 0; this overrules the ratio of the whole tensor.
    - A tensor of fewer than two dimensions has the ratio of the whole tensor alone, 1 where w or d is all 0.
    - In a tensor of three or more dimensions a row runs along dimension 1 and a column along dimension 0, for each
      index of the other dimensions; the lower bound is over the whole tensor.
    - No tensor is exempt: embeddings, biases and normalisation weights are scaled, clipped and decayed like the rest.

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate: the largest change of an entry per step.
        betas: decay of the first and of the second moment per step.
        eps: added to the root of the second moment.
        weight_decay: coefficient of the weight inside the direction.

    Raises:
        ValueError: if a value is outside its domain.
    """

    bias_correction = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def rescale(self, weight: Tensor, direction: Tensor, bucket: Bucket) -> Tensor:
        """``clip(s * d, -1, 1)`` for every entry."""
        size = weight.abs()
        weights = [largest for stack in bucket.stacks(size) for largest in _maxima(stack)]
        torch.abs(direction, out=size)
        directions = [largest for stack in bucket.stacks(size) for largest in _maxima(stack)]
        # All ratios at once: a small model has few entries but many rows, columns and tensors.
        ratios = iter(unflatten(_ratio(flatten(weights), flatten(directions)), weights))
        scale = size
        for part in bucket.stacks(scale):
            if part.ndim <= 2:
                part.copy_(next(ratios))
            else:
                whole, rows, columns = next(ratios), next(ratios), next(ratios)
                torch.maximum(torch.maximum(rows, whole), columns, out=part)
        # Turns a ratio too large for its type into the largest number as well, so that 0 * s stays 0.
        scale.nan_to_num_(nan=1.0)
        return direction.mul_(scale).clamp_(-1, 1)


def _maxima(stack: Tensor) -> tuple[Tensor, ...]:
    """Largest of the absolute values ``[count, *shape]`` in every tensor, row and column, in this order."""
    if stack.ndim <= 2:
        return (stack.amax(1, keepdim=True) if stack.ndim == 2 else stack.clone(),)
    rows, columns = stack.amax(2, keepdim=True), stack.amax(1, keepdim=True)
    return rows.amax(tuple(range(1, stack.ndim)), keepdim=True), rows, columns


def _ratio(weight: Tensor, direction: Tensor) -> Tensor:
    """``weight / direction``, NaN where either is 0: NaN survives the maxima and so marks its whole row or column."""
    return torch.where((weight == 0) | (direction == 0), torch.nan, weight / direction)


@optimizer(
    "merit",
    lr_grid=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    family="trust ratio",
    geometry="l1",
    paper="MERIT, ICML 2025, arXiv 2508.20577",
)
def merit(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> MERIT:
    """Adam's direction scaled entry by entry to the largest weights of its row, column and tensor, then clipped."""
    return MERIT([p for p in model.parameters() if p.requires_grad], lr, betas, eps, weight_decay)
