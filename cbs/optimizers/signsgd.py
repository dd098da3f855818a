"""signSGD: a step of the learning rate against the sign of every gradient entry (Bernstein et al. 2018)."""

from __future__ import annotations

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.library import construct, from_pytorch_optimizer


@optimizer(
    "signsgd",
    lr_grid=(1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
    family="sign",
    geometry="l1",
    known_as=("sign", "rprop"),
    width_rule="adam",
    paper="Bernstein et al. 2018, arXiv 1802.04434",
)
def signsgd(model: nn.Module, lr: float, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """The sign of the gradient, without momentum; weight decay is decoupled."""
    kind = from_pytorch_optimizer("SignSGD")
    return construct(kind, trainable(model), lr, momentum=0.0, weight_decay=weight_decay)
