"""MUON+: Muon whose polar factor has rows and columns of one length (arXiv 2602.21545)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.muon import Muon
from cbs.optimizers.routing import Matrices
from cbs.optimizers.spectral.base import beside_adamw

_DIMENSIONS = {"col": (-2,), "row": (-1,), "col_row": (-2, -1), "row_col": (-1, -2)}
"""Along which dimensions the norms are taken, in order: a column's norm runs over the rows."""


class MuonPlus(Muon):
    """Muon with one step after the polar factor: its columns, its rows, or both in turn are divided by their norms.

    ``scale`` stays Muon's. Entries of an ``[m, n]`` direction have root mean square ``1 / sqrt(m)`` where columns are
    normalised last, ``1 / sqrt(n)`` where rows are; those of a polar factor of full rank have ``1 / sqrt(max(m, n))``.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        norm_mode: ``"col"``, ``"row"``, ``"col_row"`` (columns, then rows) or ``"row_col"``.
        norm_eps: added to every norm.
        ns_dtype: ``"auto"``, ``"float32"`` or ``"bfloat16"``, see
            :func:`~cbs.optimizers.spectral.orthogonalization.orthogonalize`.
        muon: the other options of :class:`~cbs.optimizers.muon.Muon`.

    Raises:
        ValueError: if a value is outside its domain, or a parameter is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        norm_mode: str = "row_col",
        norm_eps: float = 1e-8,
        ns_dtype: str = "auto",
        **muon: Any,
    ) -> None:
        super().__init__(params, lr, norm_mode=norm_mode, norm_eps=norm_eps, ns_dtype=ns_dtype, **muon)

    @classmethod
    def check(cls, group: dict[str, Any]) -> None:
        """Refuse options outside their domain with a ``ValueError``."""
        super().check(group)
        if group["norm_mode"] not in _DIMENSIONS:
            raise ValueError(f"norm_mode must be one of {', '.join(_DIMENSIONS)}, got {group['norm_mode']!r}")
        if not group["norm_eps"] >= 0.0:
            raise ValueError(f"norm_eps must be at least 0, got {group['norm_eps']}")

    def directions(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The polar factors, normalised."""
        factors = self.polar_factors(momenta, group)
        return [normalize(factor, group["norm_mode"], group["norm_eps"]) for factor in factors]


def normalize(matrix: Tensor, mode: str, eps: float) -> Tensor:
    """``matrix`` with columns, rows, or both in turn divided by their Euclidean norm plus ``eps``."""
    for dimension in _DIMENSIONS[mode]:
        matrix = matrix / (torch.linalg.vector_norm(matrix, dim=dimension, keepdim=True) + eps)
    return matrix


@optimizer(
    "muon_plus",
    lr_grid=(4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry={MuonPlus: "nuclear"},
    width_rule="spectral",
    paper="arXiv 2602.21545",
    options_of=MuonPlus,
)
def muon_plus(
    model: nn.Module,
    lr: float,
    *,
    matrices: Matrices = "hidden",
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    **options: Any,
) -> torch.optim.Optimizer:
    """Muon with normalised rows and columns on hidden matrices, AdamW at the same learning rate on the rest.

    See :class:`MuonPlus` for the options up to ``weight_decay``, which is decoupled in both parts, and
    :func:`~cbs.optimizers.routing.route` for ``matrices``. ``betas`` and ``eps`` belong to AdamW.

    Raises:
        ValueError: if an option is outside its domain, or the model has no trainable parameter.
    """
    return beside_adamw(MuonPlus, model, lr, options, matrices=matrices, betas=betas, eps=eps)
