"""Steps along the gradient, with momentum (Sutskever et al. 2013, ICML), and along its sign (Bernstein et al. 2018)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer, trainable
from cbs.optimizers.contract import CheckedOptimizer, check_decay, evaluated, needs_dense_gradients


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
    """
    check_decay("momentum", momentum)
    params = trainable(model)
    return torch.optim.SGD(params, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)


@optimizer(
    "signsgd",
    lr_grid=(1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
    family="sign",
    geometry="l1",
    known_as=("sign", "rprop"),
    width_rule="adam",
    paper="Bernstein et al. 2018, arXiv 1802.04434",
)
class SignSGD(CheckedOptimizer):
    """The sign of the gradient, without momentum; weight decay is decoupled.

    ``w <- (1 - lr * weight_decay) w - lr * sign(g)``. Its state is an empty tensor for each parameter, from which
    ``torch.distributed.checkpoint`` gets the device.

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate.
        weight_decay: decoupled weight decay.
    """

    def __init__(self, params: ParamsT, lr: float = 1e-3, *, weight_decay: float = 0.0) -> None:
        super().__init__(params, locals())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient once; return the closure's result.

        Raises:
            RuntimeError: if a gradient is sparse.
        """
        loss = evaluated(closure)
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            gradients = [param.grad for param in params]
            if any(gradient.is_sparse for gradient in gradients):
                raise needs_dense_gradients(type(self).__name__)
            if not params:
                continue
            for param in params:
                if not self.state[param]:
                    self.state[param]["empty"] = torch.empty(0, device=param.device)
            lr = float(group["lr"])
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            torch._foreach_add_(params, torch._foreach_sign(gradients), alpha=-lr)
        return loss
