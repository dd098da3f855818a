"""Lion: the sign of an interpolation between gradient and momentum (Chen et al. 2023, arXiv 2302.06675)."""

from __future__ import annotations

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.library import construct, from_pytorch_optimizer


@optimizer(
    "lion",
    lr_grid=(1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
    family="sign",
    geometry="l1",
    width_rule="adam",
    second_moment=False,
    paper="Chen et al. 2023, arXiv 2302.06675",
)
def lion(
    model: nn.Module, lr: float, *, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Evolved sign momentum.

    ``w <- w - lr * sign(beta1 m + (1 - beta1) g)``, then ``m <- beta2 m + (1 - beta2) g``: both decays belong to the
    first moment. Weight decay is decoupled.

    Raises:
        ValueError: if an option is outside its domain.
    """
    return construct(from_pytorch_optimizer("Lion"), trainable(model), lr, betas=betas, weight_decay=weight_decay)
