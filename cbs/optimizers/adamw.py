"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101)."""

from __future__ import annotations

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable

_FUSED_DEVICES = ("cpu", "cuda")


@optimizer(
    "adamw",
    lr_grid=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    family="adam",
    geometry="l1",
    paper="Loshchilov & Hutter 2019, arXiv 1711.05101",
)
def adamw(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> torch.optim.AdamW:
    """Adam with decoupled weight decay, torch's fused kernel where there is one."""
    params = trainable(model)
    return torch.optim.AdamW(
        params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=has_fused_kernel(params)
    )


def has_fused_kernel(params: list[nn.Parameter]) -> bool:
    """Whether torch's fused AdamW serves all ``params``: real floating point, on a CPU or a CUDA device."""
    return all(param.is_floating_point() and param.device.type in _FUSED_DEVICES for param in params)
