"""OrScale: Muon's direction times a ratio of norms for each matrix (arXiv 2605.07815)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_choice, check_size
from cbs.optimizers.layout import as_matrices, as_parameter
from cbs.optimizers.muon import shape_scale
from cbs.optimizers.spectral.base import SpectralOptimizer, beside_adamw

FORMS = ("lm", "general")


class OrScale(SpectralOptimizer):
    """Layerwise scaling of the whole update, including weight decay. With the polar factor Q of a matrix W's momentum,

        D  = weight_decay * W + s Q
        r  = |W| / (c |D| + eps)
        W <- W - lr * clip(r, r_min, r_max) * D

    where ``|.|`` is the Frobenius norm. The general form has ``s = c = 1``. The form for language models has
    ``s = 0.2 sqrt(max(m, n))`` for ``[m, n]`` matrices, as Muon under ``"match_rms_adamw"``, and sets c for each matrix
    to ``|W| / |D|`` of the first step at which both are above 0, so that r starts at 1; until then r is 1. Weight decay
    is part of the direction; with a ratio of 1 it is Muon's decoupled decay. The released settings clip ratios to
    [0.1, 5] in the form for language models and to [0.5, 1.5] in the general form.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        form: ``"lm"`` or ``"general"``.
        r_min: smallest ratio.
        r_max: largest ratio; if equal to ``r_min``, the ratio is fixed.
        ratio_eps: added to the denominator of the ratio.
        momentum: decay of the average gradient per step.
        nesterov: whether to use Nesterov's look-ahead.
        weight_decay: coefficient of the weight inside the direction.
        iteration: options of :class:`~cbs.optimizers.spectral.base.SpectralOptimizer`.

    Raises:
        ValueError: if a value is invalid, or a parameter is not a matrix.
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
        weight_decay: float = 0.0,
        **iteration: Any,
    ) -> None:
        super().__init__(params, locals(), **iteration)

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        check_choice("form", group["form"], FORMS)
        if not 0.0 < group["r_min"] <= group["r_max"]:
            raise ValueError(f"0 < r_min <= r_max must hold, got {group['r_min']} and {group['r_max']}")
        check_size("ratio_eps", group["ratio_eps"])

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Move ``params`` along their directions, scaled by their ratios."""
        is_lm = group["form"] == "lm"
        for param, momentum, factor in zip(params, momenta, self.polar_factors(momenta, group), strict=True):
            matrix = as_matrices(param, group["layout"]).to(momentum.dtype)
            direction = factor.to(momentum.dtype) * (shape_scale(factor.shape, "match_rms_adamw") if is_lm else 1.0)
            direction.add_(matrix, alpha=group["weight_decay"])
            weight, length = (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) for x in (matrix, direction))
            constant = self._calibrated(param, weight, length) if is_lm else torch.ones_like(weight)
            ratio = torch.where(constant > 0, weight / (constant * length + group["ratio_eps"]), 1.0)
            direction.mul_(ratio.clamp(group["r_min"], group["r_max"]))
            param.add_(as_parameter(direction, param.shape, group["layout"]), alpha=-float(group["lr"]))

    def _calibrated(self, param: Tensor, weight: Tensor, length: Tensor) -> Tensor:
        """Return the constant c of each matrix; 0 until it is set."""
        quotient = torch.where(length > 0, weight / length, 0.0)
        known = self.state[param].setdefault("calibration", torch.zeros_like(quotient))
        return known.copy_(torch.where(known > 0, known, quotient))


orscale = optimizer(
    "orscale",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry={OrScale: "nuclear"},
    width_rule="spectral",
    paper="arXiv 2605.07815",
    options_of=OrScale,
    decoupled_decay=False,
)(beside_adamw(OrScale, "Muon's direction scaled to each hidden matrix's norm, AdamW on the rest."))
