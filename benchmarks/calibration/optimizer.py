"""Gradient descent behind a fixed preconditioner, as the theory of the noisy quadratic has it."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from cbs.optimizers.contract import CheckedOptimizer


class PreconditionedSGD(CheckedOptimizer):
    """Gradient descent ``w <- w - lr h^-p g`` on curvatures that are known: ``h_i = i^-spectrum_power``.

    ``power`` p = 0 is plain gradient descent, 1/2 what Adam does to a diagonal curvature, 1 Newton's method. The state
    holds ``h^(2p)`` where Adam keeps its second moment, so the geometry ``preconditioned`` reads this preconditioner.
    """

    geometry = "preconditioned"
    family = "sgd"
    lr_grid = (0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024)

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.1, *, power: float = 0.5, spectrum_power: float = 1.0
    ) -> None:
        super().__init__(params, {"lr": lr, "power": power, "spectrum_power": spectrum_power})
        for group in self.param_groups:
            for param in group["params"]:
                curvature = torch.arange(1, param.numel() + 1, dtype=torch.float64).pow(-group["spectrum_power"])
                square = curvature.pow(2.0 * group["power"]).reshape(param.shape)
                self.state[param]["exp_avg_sq"] = square.to(param)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.addcdiv_(param.grad, self.state[param]["exp_avg_sq"].sqrt(), value=-group["lr"])
        return loss
