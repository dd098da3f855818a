"""MUON+: Muon whose polar factors have rows or columns of equal norm (arXiv 2602.21545)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_choice, check_size
from cbs.optimizers.muon import Muon
from cbs.optimizers.spectral.base import SpectralOptimizer, beside_adamw

_DIMENSIONS = {"col": (-2,), "row": (-1,), "col_row": (-2, -1), "row_col": (-1, -2)}
"""Dimensions along which the norms are taken, in order: the norm of a column is taken over the rows."""


class MuonPlus(Muon):
    """Muon whose polar factors are normalised: their columns, rows, or both in turn are divided by their norms.

    ``scale`` is that of Muon. The entries of an ``[m, n]`` direction have root mean square ``1 / sqrt(m)`` if columns
    are normalised last, ``1 / sqrt(n)`` if rows are; for a polar factor of full rank it is ``1 / sqrt(max(m, n))``.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        norm_mode: ``"col"``, ``"row"``, ``"col_row"`` (columns, then rows) or ``"row_col"``.
        norm_eps: added to every norm.
        momentum: like all further options as in :class:`~cbs.optimizers.muon.Muon`.

    Raises:
        ValueError: if a value is invalid, or a parameter is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        norm_mode: str = "row_col",
        norm_eps: float = 1e-8,
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
        check_choice("norm_mode", group["norm_mode"], _DIMENSIONS)
        check_size("norm_eps", group["norm_eps"])

    def directions(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the normalised polar factors."""
        factors = self.polar_factors(momenta, group)
        return [normalize(factor, group["norm_mode"], group["norm_eps"]) for factor in factors]


def normalize(matrix: Tensor, mode: str, eps: float) -> Tensor:
    """Return ``matrix`` with columns, rows, or both in turn divided by their Euclidean norm plus ``eps``."""
    for dimension in _DIMENSIONS[mode]:
        matrix = matrix / (torch.linalg.vector_norm(matrix, dim=dimension, keepdim=True) + eps)
    return matrix


muon_plus = optimizer(
    "muon_plus",
    lr_grid=(4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry={MuonPlus: "nuclear"},
    width_rule="spectral",
    paper="arXiv 2602.21545",
    options_of=MuonPlus,
)(beside_adamw(MuonPlus, "Muon with normalised rows and columns on hidden matrices, AdamW on the rest."))
