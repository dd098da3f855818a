"""AdamH: Adam on a sphere, every matrix keeping the norm it started with (Wen et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_decay, check_size, misfit
from cbs.optimizers.layout import as_matrices
from cbs.optimizers.spectral.base import MomentumOptimizer, beside_adamw, step_on_sphere


class AdamHyperball(MomentumOptimizer):
    """Adam on a sphere: steps relative to the norm of a matrix, which never changes.

    With the averages m of the gradients and v of their squares, the direction is D = m / (sqrt(v) + denominator_eps),
    and the step :func:`~cbs.optimizers.spectral.base.step_on_sphere`. It does not depend on the scale of D, so bias
    correction would have no effect (up to ``denominator_eps``).

    Args:
        params: matrices, none of them 0, or groups of them as torch.optim takes them.
        lr: length of a step relative to the norm of the weights.
        momentum: decay of the average gradient per step.
        beta2: decay of the average square per step.
        denominator_eps: added to the square root.
        weight_decay: weight decay of the parameters that AdamW trains; the norm of matrices is fixed instead.

    Raises:
        ValueError: if a value is invalid, or a parameter is not a matrix or, at the first step, is 0.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        *,
        momentum: float = 0.9,
        beta2: float = 0.95,
        denominator_eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "beta2": beta2, "denominator_eps": denominator_eps}
        super().__init__(params, {**options, "weight_decay": weight_decay, "layout": "out_in"})

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        check_decay("beta2", group["beta2"])
        check_size("denominator_eps", group["denominator_eps"])

    def check_parameter(self, param: Tensor) -> None:
        """Raise ``ValueError`` for a parameter that is not a matrix."""
        super().check_parameter(param)
        if param.ndim < 2:
            raise ValueError(f"{type(self).__name__} takes matrices, got a parameter of shape {tuple(param.shape)}")

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` on their spheres."""
        for param, momentum in zip(params, momenta, strict=True):
            assert param.grad is not None
            squares = self.state[param].setdefault("squares", torch.zeros_like(momentum))
            if squares.shape != param.shape:
                raise misfit(self, "squares", squares, param)
            squares.lerp_(param.grad.to(momentum.dtype).square(), 1 - group["beta2"])
            direction = momentum / (squares.sqrt() + group["denominator_eps"])
            step_on_sphere(self, param, as_matrices(direction, group["layout"]), group)


adamh = optimizer(
    "adamh",
    lr_grid=(4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2, 0.128),
    family="adam",
    geometry={AdamHyperball: "l1"},
    width_rule="none",
    paper="Wen et al. 2025, Hyperball Optimization, whenwen.github.io/wd_blog",
    options_of=AdamHyperball,
)(beside_adamw(AdamHyperball, "Adam on the sphere of each hidden matrix's first norm, AdamW on the rest."))
