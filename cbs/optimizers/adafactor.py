"""Adafactor: second moments of a matrix from its row and column sums (Shazeer & Stern 2018, arXiv 1804.04235)."""

from __future__ import annotations

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.contract import check_size
from cbs.optimizers.library import construct


@optimizer(
    "adafactor",
    lr_grid=(5e-3, 1e-2, 2e-2, 4e-2, 8e-2, 0.16, 0.32),
    family="adam",
    geometry="l1",
    width_rule="spectral",
    paper="Shazeer & Stern 2018, arXiv 1804.04235",
)
def adafactor(
    model: nn.Module,
    lr: float,
    *,
    beta2_decay: float = -0.8,
    clip_threshold: float = 1.0,
    min_scale: float = 1e-3,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Factored second moments, no first moment, steps relative to the root mean square of a tensor.

    torch's Adafactor: at step t the decay of the second moment is ``1 - t^beta2_decay``, an update whose root mean
    square exceeds ``clip_threshold`` is scaled down to it, and the step size of a tensor w is
    ``min(lr, 1/sqrt(t)) * max(min_scale, rms(w))``. Learning rates above ``1/sqrt(t)`` are therefore alike from step t
    on. Weight decay is decoupled.

    Raises:
        ValueError: if an option is outside its domain.
    """
    check_size("min_scale", min_scale)
    return construct(
        torch.optim.Adafactor,
        trainable(model),
        lr,
        beta2_decay=beta2_decay,
        eps=(None, min_scale),
        d=clip_threshold,
        weight_decay=weight_decay,
    )
