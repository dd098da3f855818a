"""Schedule-free AdamW: averaging in place of a learning-rate schedule (Defazio et al. 2024, arXiv 2405.15682)."""

from __future__ import annotations

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.library import construct, from_pytorch_optimizer


@optimizer(
    "schedule_free",
    lr_grid=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="adam",
    geometry="l1",
    known_as=(),
    width_rule="adam",
    paper="Defazio et al. 2024, arXiv 2405.15682",
    published={"betas": (0.9, 0.999)},
)
def schedule_free(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    weight_lr_power: float = 2.0,
    r: float = 0.0,
) -> torch.optim.Optimizer:
    """AdamW on a sequence whose weighted average is what it hands over.

    The gradient is taken at ``y = (1 - beta1) z + beta1 x``, AdamW without momentum moves z, and x is the average of
    the z, step t with weight ``t^r`` times the largest learning rate so far to the power ``weight_lr_power``. The model
    holds y while it trains and x between ``optimizer.eval()`` and ``optimizer.train()``; validation uses x.

    Raises:
        ValueError: if an option is outside its domain; beta1 must be above 0.
    """
    return construct(
        from_pytorch_optimizer("ScheduleFreeAdamW"),
        trainable(model),
        lr,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        weight_lr_power=weight_lr_power,
        r=r,
    )
