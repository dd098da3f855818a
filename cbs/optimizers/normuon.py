"""NorMuon: Muon whose directions have rows of equal size on average (Li et al. 2025, arXiv 2510.05491)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_decay, misfit, state_dtype
from cbs.optimizers.muon import Muon
from cbs.optimizers.spectral.base import SpectralOptimizer, beside_adamw

FLOOR = 1e-10
"""Added to square roots and norms in denominators, as in the released code (zichongli5/NorMuon, normuon.py)."""


class NorMuon(Muon):
    """Muon with a second moment for every row (a neuron) of the polar factor O of the momentum:

        v_i <- beta2 * v_i + (1 - beta2) mean_j O_ij^2
        D_ij = O_ij / sqrt(v_i)
        W <- (1 - lr * weight_decay) W - lr * scale * D |O| / |D|

    where ``|.|`` is the Frobenius norm, so that a step is as long as Muon's. v starts at 0 without bias correction,
    because the last factor would cancel it.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        beta2: decay of the rows' average squares per step.
        momentum: like all further options as in :class:`~cbs.optimizers.muon.Muon`; the released code uses the learning
            rate convention ``"original"``.

    Raises:
        ValueError: if a value is invalid, or a parameter is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        beta2: float = 0.95,
        momentum: float = 0.95,
        nesterov: bool = True,
        lr_convention: str = "match_rms_adamw",
        weight_decay: float = 0.0,
        **iteration: Any,
    ) -> None:
        SpectralOptimizer.__init__(self, params, locals(), **iteration)

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        check_decay("beta2", group["beta2"])

    def directions(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the polar factors, with rows divided by the roots of their second moments and the original norm."""
        factors = zip(params, self.polar_factors(momenta, group), strict=True)
        return [self._even(param, factor.to(state_dtype(param)), group["beta2"]) for param, factor in factors]

    def _even(self, param: Tensor, factor: Tensor, beta2: float) -> Tensor:
        squares = factor.square().mean(-1, keepdim=True)
        average = self.state[param].setdefault("row_squares", torch.zeros_like(squares))
        if average.shape != squares.shape:
            raise misfit(self, "row_squares", average, param)
        # Updated before it is read: v starts at 0, by which the first step would divide.
        direction = factor / (average.lerp_(squares, 1 - beta2).sqrt() + FLOOR)
        length, now = (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) for x in (factor, direction))
        return direction * (length / (now + FLOOR))


normuon = optimizer(
    "normuon",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry={NorMuon: "nuclear"},
    width_rule="spectral",
    paper="Li et al. 2025, arXiv 2510.05491",
    options_of=NorMuon,
)(beside_adamw(NorMuon, "Muon with rows of one size on average on hidden matrices, AdamW on the rest."))
