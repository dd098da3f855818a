"""MuonH: Muon on a sphere, every matrix keeping the norm it started with (Wen et al. 2025)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.spectral.base import SpectralOptimizer, beside_adamw, step_on_sphere


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
        iteration: options of :class:`~cbs.optimizers.spectral.base.SpectralOptimizer`.

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
