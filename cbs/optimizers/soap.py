"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024, arXiv 2409.11321)."""

from __future__ import annotations

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.library import construct, from_pytorch_optimizer


@optimizer(
    "soap",
    lr_grid=(7.5e-4, 1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2, 4.8e-2),
    family="spectral",
    geometry="nuclear",
    width_rule="adam",
    paper="Vyas et al. 2024, arXiv 2409.11321",
)
def soap(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.95, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    precondition_frequency: int = 10,
    max_precondition_dim: int = 10_000,
    precondition_1d: bool = False,
) -> torch.optim.Optimizer:
    """Adam on gradients rotated into the eigenbases of averaged ``G G^T`` and ``G^T G``.

    For a matrix ``[m, n]`` both averages decay with beta2; their eigenbases follow by one power iteration every
    ``precondition_frequency`` steps. A side longer than ``max_precondition_dim``, such as a vocabulary, is not rotated;
    with neither side rotated the update is Adam's. Vectors are rotated only with ``precondition_1d``. The first step
    starts the averages and moves nothing. Weight decay is decoupled.

    Raises:
        ValueError: if an option is outside its domain.
    """
    return construct(
        from_pytorch_optimizer("SOAP"),
        trainable(model),
        lr,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        precondition_frequency=precondition_frequency,
        max_precondition_dim=max_precondition_dim,
        precondition_1d=precondition_1d,
    )
