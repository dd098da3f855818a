"""Signum: the sign of the averaged gradient (Bernstein et al. 2018, arXiv 1802.04434, Algorithm 2)."""

from __future__ import annotations

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.library import construct, from_pytorch_optimizer


@optimizer(
    "signum",
    lr_grid=(1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
    family="sign",
    geometry="l1",
    width_rule="adam",
    paper="Bernstein et al. 2018, arXiv 1802.04434",
)
def signum(model: nn.Module, lr: float, *, momentum: float = 0.9, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """The sign of an exponential average of gradients.

    ``m <- momentum * m + (1 - momentum) * g`` and ``w <- w - lr * sign(m)``. Weight decay is decoupled.

    Raises:
        ValueError: if an option is outside its domain.
    """
    kind = from_pytorch_optimizer("SignSGD")
    return construct(kind, trainable(model), lr, momentum=momentum, weight_decay=weight_decay)
