"""Muon and Adam on a sphere, every matrix keeping the norm it started with (Wen et al. 2025)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_decay, check_size, misfit
from cbs.optimizers.layout import as_matrices, as_parameter
from cbs.optimizers.spectral import MomentumOptimizer, SpectralOptimizer, beside_adamw


def step_on_sphere(owner: torch.optim.Optimizer, param: Tensor, direction: Tensor, group: Mapping[str, Any]) -> None:
    """Move a matrix W to ``R N(W - lr * R * N(D))`` with ``N(X) = X / |X|`` and the Frobenius norm.

    R = |W| before the first step is kept in the optimizer's state.

    Args:
        owner: optimizer of the parameter.
        param: the parameter.
        direction: D, as matrices ``[m, n]`` or ``[experts, m, n]``; where it is 0, W stays.
        group: options of the parameter, ``lr`` and ``layout``.

    Raises:
        ValueError: if a matrix is 0 at its first step.
    """
    matrix = as_matrices(param, group["layout"]).to(direction.dtype)
    state = owner.state[param]
    if "radius" not in state:
        state["radius"] = _norm(matrix)
        if not bool((state["radius"] > 0).all()):
            raise ValueError(
                f"{type(owner).__name__} keeps the norm of a matrix, but one of shape {tuple(param.shape)} starts "
                'at 0; initialize it otherwise, or train it with AdamW: matrices=["!NAME"]'
            )
    radius: Tensor = state["radius"]
    if radius.shape != (*matrix.shape[:-2], 1, 1):
        raise misfit(owner, "radius", radius, param)
    length = _norm(direction)
    moved = matrix - float(group["lr"]) * radius * torch.where(length > 0, direction / length, direction)
    param.copy_(as_parameter(moved * (radius / _norm(moved)), param.shape, group["layout"]))


def _norm(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)


class MuonHyperball(SpectralOptimizer):
    """Muon on a sphere: steps relative to the norm of a matrix, which never changes.

    With O the polar factor of the momentum of W, ``|.|`` the Frobenius norm and R = |W| before the first step,

        W <- R N(W - lr * R * N(O)),  N(X) = X / |X|,

    so ``lr`` is the length of a step relative to the norm of the weights, at every width.

    Args:
        params: matrices, none of them 0, or groups of them as torch.optim takes them.
        lr: length of a step relative to the norm of the weights.
        momentum: decay of the average gradient per step.
        nesterov: whether to use Nesterov's look-ahead.
        weight_decay: weight decay of the parameters that AdamW trains; the norm of matrices is fixed instead.
        iteration: options of :class:`~cbs.optimizers.spectral.SpectralOptimizer`.

    Raises:
        ValueError: if a value is invalid, a parameter is not a matrix, or, at the first step, is 0.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        **iteration: Any,
    ) -> None:
        super().__init__(params, locals(), **iteration)

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` on their spheres."""
        for param, momentum, factor in zip(params, momenta, self.polar_factors(momenta, group), strict=True):
            step_on_sphere(self, param, factor.to(momentum.dtype), group)


muonh = optimizer(
    "muonh",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry={MuonHyperball: "nuclear"},
    width_rule="none",
    paper="Wen et al. 2025, Hyperball Optimization, whenwen.github.io/wd_blog",
    options_of=MuonHyperball,
)(beside_adamw(MuonHyperball, "Muon on the sphere of each hidden matrix's first norm, AdamW on the rest."))


class AdamHyperball(MomentumOptimizer):
    """Adam on a sphere: steps relative to the norm of a matrix, which never changes.

    With the averages m of the gradients and v of their squares, the direction is D = m / (sqrt(v) + denominator_eps),
    and the step :func:`step_on_sphere`. It does not depend on the scale of D, so bias
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
