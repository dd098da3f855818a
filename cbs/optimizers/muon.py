"""Muon on the hidden matrices of a model, AdamW on the rest (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.routing import Matrices
from cbs.optimizers.spectral.base import SpectralOptimizer, beside_adamw
from cbs.optimizers.spectral.orthogonalization import COEFFICIENTS

LR_CONVENTIONS = ("match_rms_adamw", "original")


class Muon(SpectralOptimizer):
    """Momentum orthogonalised: with the polar factor O of the momentum of a matrix W,

        W <- (1 - lr * weight_decay) W - lr * scale * O

    where ``scale`` depends on the shape ``[m, n]`` alone. On float32 matrices and with ``ns_dtype="bfloat16"`` it steps
    bit for bit like ``torch.optim.Muon``; its momentum is float32 where weights are bfloat16, and its polar factor may
    also be iterated in float32, the default on a CPU, or exact.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        momentum: decay of the average gradient per step.
        nesterov: whether to look one step ahead.
        orthogonalization: ``"newton_schulz"`` or ``"svd"``.
        ns_steps: Newton-Schulz steps.
        ns_coefficients: Newton-Schulz coefficients.
        ns_dtype: ``"auto"``, ``"float32"`` or ``"bfloat16"``, see
            :func:`~cbs.optimizers.spectral.orthogonalization.orthogonalize`.
        lr_convention: ``"match_rms_adamw"`` for a scale of ``0.2 sqrt(max(m, n))``, with which entries have the root
            mean square of an AdamW update (arXiv 2502.16982); ``"original"`` for ``sqrt(max(1, m / n))`` (Jordan 2024).
        weight_decay: decoupled weight decay.

    Raises:
        ValueError: if a value is outside its domain, or a parameter is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        orthogonalization: str = "newton_schulz",
        ns_steps: int = 5,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        ns_dtype: str = "auto",
        lr_convention: str = "match_rms_adamw",
        weight_decay: float = 0.0,
        **own: Any,
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum=momentum,
            nesterov=nesterov,
            orthogonalization=orthogonalization,
            ns_steps=ns_steps,
            ns_coefficients=ns_coefficients,
            ns_dtype=ns_dtype,
            lr_convention=lr_convention,
            weight_decay=weight_decay,
            **own,
        )

    @classmethod
    def check(cls, group: dict[str, Any]) -> None:
        """Refuse options outside their domain with a ``ValueError``."""
        super().check(group)
        if group["lr_convention"] not in LR_CONVENTIONS:
            raise ValueError(
                f"lr_convention must be one of {', '.join(LR_CONVENTIONS)}, got {group['lr_convention']!r}"
            )

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Decay ``params`` and move them against the direction of their momenta."""
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        for param, direction in zip(params, self.directions(momenta, group), strict=True):
            param.add_(direction, alpha=-group["lr"] * shape_scale(param.shape, group["lr_convention"]))

    def directions(self, momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """What ``scale`` multiplies: the polar factors."""
        return self.polar_factors(momenta, group)


def shape_scale(shape: torch.Size, convention: str) -> float:
    """The factor of a matrix ``[m, n]`` under a convention for the learning rate; see :class:`Muon`."""
    rows, columns = shape
    if convention == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


@optimizer(
    "muon",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry={Muon: "nuclear"},
    width_rule="spectral",
    paper="Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982",
    options_of=Muon,
)
def muon(
    model: nn.Module,
    lr: float,
    *,
    matrices: Matrices = "hidden",
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    **options: Any,
) -> torch.optim.Optimizer:
    """Orthogonalised momentum on hidden matrices, AdamW at the same learning rate on the rest.

    See :class:`Muon` for the options up to ``weight_decay``, which is decoupled in both parts. ``matrices`` says which
    parameters are which, see :func:`~cbs.optimizers.routing.route`; convolution kernels are AdamW's, and so is a model
    without matrices. ``betas`` and ``eps`` belong to AdamW. One learning rate serves both parts under
    ``"match_rms_adamw"``.

    Raises:
        ValueError: if an option is outside its domain, or the model has no trainable parameter.
    """
    return beside_adamw(Muon, model, lr, options, matrices=matrices, betas=betas, eps=eps)
