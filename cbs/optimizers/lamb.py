"""LAMB: one ratio of Euclidean norms for each tensor (You et al. 2020, arXiv 1904.00962)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.trust_ratio import Bucket, TrustRatioOptimizer


class LAMB(TrustRatioOptimizer):
    """Layerwise adaptive moments for batch training, arXiv 1904.00962, Algorithm 2 with phi(z) = z.

    With the bias-corrected moments m, v of a tensor w,

        d  = m / (sqrt(v) + eps) + weight_decay * w
        w <- w - lr * (|w| / |d|) * d

    where ``|.|`` is the Euclidean norm over the whole tensor. The ratio is 1 where either norm is 0, so tensors that
    start at 0 move. No tensor is exempt: biases and normalisation weights are scaled and decayed like the rest.

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate: the relative change of a tensor's norm per step.
        betas: decay of the first and of the second moment per step.
        eps: added to the root of the second moment.
        weight_decay: coefficient of the weight inside the direction.

    Raises:
        ValueError: if a value is outside its domain.
    """

    bias_correction = True

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
        """``(|w| / |d|) d`` for each tensor, ``d`` itself where either norm is 0."""
        directions = direction.split(bucket.sizes)
        norms = torch.stack(torch._foreach_norm([*weight.split(bucket.sizes), *directions])).view(2, -1)
        ratios = torch.where((norms > 0).all(0), norms[0] / norms[1], 1.0)
        torch._foreach_mul_(directions, ratios.unbind())
        return direction


@optimizer(
    "lamb",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    family="trust ratio",
    geometry="l1",
    paper="You et al. 2020, arXiv 1904.00962",
)
def lamb(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> LAMB:
    """Adam's direction scaled to each tensor's Euclidean norm."""
    return LAMB([p for p in model.parameters() if p.requires_grad], lr, betas, eps, weight_decay)
