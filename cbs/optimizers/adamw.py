"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101)."""

from __future__ import annotations

from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.fused_adam import AdamW, has_fused_kernel


@optimizer(
    "adamw",
    lr_grid=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    family="adam",
    geometry="l1",
    paper="Loshchilov & Hutter 2019, arXiv 1711.05101",
    published={"betas": (0.9, 0.999)},
)
def adamw(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> AdamW:
    """Adam with decoupled weight decay, torch's fused kernel where there is one."""
    params = trainable(model)
    fused = has_fused_kernel(params)
    return AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)
