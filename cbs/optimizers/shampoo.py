"""Shampoo: a preconditioner for every side of a tensor (Gupta et al. 2018, arXiv 1802.09568)."""

from __future__ import annotations

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.library import construct, from_pytorch_optimizer


@optimizer(
    "shampoo",
    lr_grid=(5e-2, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
    family="spectral",
    geometry="nuclear",
    known_as=("shampoo", "splus", "kron"),
    width_rule="none",
    paper="Gupta et al. 2018, arXiv 1802.09568",
    decoupled_decay=False,
)
def shampoo(
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.0,
    matrix_eps: float = 1e-4,
) -> torch.optim.Optimizer:
    """Gradients between inverse roots of summed second moments.

    Algorithm 1 for a matrix ``[m, n]``: ``L <- L + G G^T``, ``R <- R + G^T G`` and ``w <- w - lr L^(-1/4) G R^(-1/4)``,
    from ``L = R = matrix_eps I``; Algorithm 2 for other shapes. The sums only grow, so steps shrink as AdaGrad's do.
    Sums of few gradients are singular but for ``matrix_eps``, which float32 loses where it is below a ten-millionth of
    their entries. Weight decay is added to the gradient.

    Raises:
        ValueError: if an option is outside its domain.
    """
    kind = from_pytorch_optimizer("Shampoo")
    return construct(kind, trainable(model), lr, weight_decay=weight_decay, matrix_eps=matrix_eps)
