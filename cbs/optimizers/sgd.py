"""SGD with heavy-ball or Nesterov momentum (Sutskever et al. 2013, ICML)."""

import torch
from torch import nn

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.contract import check_decay


@optimizer(
    "sgd",
    lr_grid=(8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128, 0.256, 0.512, 1.024),
    family="sgd",
    geometry="l2",
    width_rule="sgd",
    paper="Sutskever et al. 2013, ICML",
    decoupled_decay=False,
)
def sgd(
    model: nn.Module,
    lr: float,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> torch.optim.SGD:
    """Stochastic gradient descent with momentum.

    torch's form: ``buffer <- momentum * buffer + g`` and ``w <- w - lr * buffer``, so under a constant gradient steps
    tend to ``lr / (1 - momentum)`` times the gradient. Weight decay is added to the gradient.

    Raises:
        ValueError: if an option is invalid.
    """
    check_decay("momentum", momentum)
    params = trainable(model)
    return torch.optim.SGD(params, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
