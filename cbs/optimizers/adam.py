"""Adam (Kingma & Ba 2015, arXiv 1412.6980)."""

from __future__ import annotations

from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.fused_adam import Adam, has_fused_kernel


@optimizer(
    "adam",
    lr_grid=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    family="adam",
    geometry="l1",
    known_as=("adam", "adagrad", "adadelta", "rmsprop", "adan", "adabelief"),
    width_rule="adam",
    paper="Kingma & Ba 2015, arXiv 1412.6980",
    decoupled_decay=False,
    published={"betas": (0.9, 0.999)},
)
def adam(
    model: nn.Module,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
) -> Adam:
    """Adam with weight decay added to the gradient; without decay it is ``adamw``, step for step."""
    params = trainable(model)
    fused = has_fused_kernel(params)
    return Adam(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, fused=fused)
