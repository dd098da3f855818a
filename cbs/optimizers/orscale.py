"""OrScale: Muon's direction times a ratio of norms for each matrix (arXiv 2605.07815)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.muon import shape_scale
from cbs.optimizers.routing import Matrices
from cbs.optimizers.spectral.base import SpectralOptimizer, beside_adamw
from cbs.optimizers.spectral.orthogonalization import COEFFICIENTS

FORMS = ("lm", "general")


class OrScale(SpectralOptimizer):
    """Layerwise scaling of the direction that is in fact subtracted. With the polar factor Q of a matrix W's momentum,

        D  = weight_decay * W + s Q
        r  = |W| / (c |D| + eps)
        W <- W - lr * clip(r, r_min, r_max) * D

    where ``|.|`` is the Frobenius norm. The general form has ``s = c = 1``. The form for language models has
    ``s = 0.2 sqrt(max(m, n))`` for ``[m, n]`` matrices, as Muon under ``"match_rms_adamw"``, and fixes c for each
    matrix at ``|W| / |D|`` of the first step at which both are above 0, so that r starts at 1; until then r is 1.
    Weight decay is part of the direction; with a ratio of 1 it is Muon's decoupled decay.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        form: ``"lm"`` or ``"general"``.
        r_min: least ratio.
        r_max: largest ratio; equal to ``r_min`` it fixes the ratio.
        ratio_eps: added to the denominator of the ratio.
        momentum: decay of the average gradient per step.
        nesterov: whether to look one step ahead.
        orthogonalization: ``"newton_schulz"`` or ``"svd"``.
        ns_steps: Newton-Schulz steps.
        ns_coefficients: Newton-Schulz coefficients.
        ns_dtype: ``"auto"``, ``"float32"`` or ``"bfloat16"``, see
            :func:`~cbs.optimizers.spectral.orthogonalization.orthogonalize`.
        weight_decay: coefficient of the weight inside the direction.

    Raises:
        ValueError: if a value is outside its domain, or a parameter is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        form: str = "lm",
        r_min: float = 0.1,
        r_max: float = 5.0,
        ratio_eps: float = 1e-6,
        momentum: float = 0.95,
        nesterov: bool = True,
        orthogonalization: str = "newton_schulz",
        ns_steps: int = 5,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        ns_dtype: str = "auto",
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            lr,
            form=form,
            r_min=r_min,
            r_max=r_max,
            ratio_eps=ratio_eps,
            momentum=momentum,
            nesterov=nesterov,
            orthogonalization=orthogonalization,
            ns_steps=ns_steps,
            ns_coefficients=ns_coefficients,
            ns_dtype=ns_dtype,
            weight_decay=weight_decay,
        )

    @classmethod
    def check(cls, group: dict[str, Any]) -> None:
        """Refuse options outside their domain with a ``ValueError``."""
        super().check(group)
        if group["form"] not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got {group['form']!r}")
        if not 0.0 < group["r_min"] <= group["r_max"]:
            raise ValueError(f"0 < r_min <= r_max must hold, got {group['r_min']} and {group['r_max']}")
        if not group["ratio_eps"] >= 0.0:
            raise ValueError(f"ratio_eps must be at least 0, got {group['ratio_eps']}")

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` along their directions, each as far as its ratio says."""
        is_lm = group["form"] == "lm"
        directions = [
            factor.to(momentum.dtype) * (shape_scale(param.shape, "match_rms_adamw") if is_lm else 1.0)
            for param, momentum, factor in zip(params, momenta, self.polar_factors(momenta, group), strict=True)
        ]
        weights = [param.to(momentum.dtype) for param, momentum in zip(params, momenta, strict=True)]
        torch._foreach_add_(directions, weights, alpha=group["weight_decay"])
        sizes = zip(torch._foreach_norm(weights), torch._foreach_norm(directions), strict=True)
        for param, direction, (weight, length) in zip(params, directions, sizes, strict=True):
            constant = self._calibrated(param, weight, length) if is_lm else torch.ones_like(weight)
            ratio = torch.where(constant > 0, weight / (constant * length + group["ratio_eps"]), 1.0)
            direction.mul_(ratio.clamp(group["r_min"], group["r_max"]))
            param.add_(direction, alpha=-group["lr"])

    def _calibrated(self, param: Tensor, weight: Tensor, length: Tensor) -> Tensor:
        """The constant c of a matrix; 0 until it can be fixed."""
        state = self.state[param]
        known = state.get("calibration", torch.zeros_like(weight))
        quotient = torch.where(length > 0, weight / length, 0.0)
        state["calibration"] = torch.where(known > 0, known, quotient)
        return state["calibration"]


@optimizer(
    "orscale",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry={OrScale: "nuclear"},
    width_rule="spectral",
    paper="arXiv 2605.07815",
    options_of=OrScale,
    decoupled_decay=False,
)
def orscale(
    model: nn.Module,
    lr: float,
    *,
    matrices: Matrices = "hidden",
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    **options: Any,
) -> torch.optim.Optimizer:
    """Muon's direction scaled to each hidden matrix's norm, AdamW at the same learning rate on the rest.

    See :class:`OrScale` for the options up to ``weight_decay``, which AdamW applies decoupled, and
    :func:`~cbs.optimizers.routing.route` for ``matrices``. ``betas`` and ``eps`` belong to AdamW. The released settings
    clip ratios to [0.1, 5] in the form for language models and to [0.5, 1.5] in the general one.

    Raises:
        ValueError: if an option is outside its domain, or the model has no trainable parameter.
    """
    return beside_adamw(OrScale, model, lr, options, matrices=matrices, betas=betas, eps=eps)
