"""Muon on the hidden matrices of a model, AdamW on the rest (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982)."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_choice
from cbs.optimizers.layout import as_parameter
from cbs.optimizers.spectral import NORM_FLOOR, SpectralOptimizer, beside_adamw

LR_CONVENTIONS = ("match_rms_adamw", "original")


class Muon(SpectralOptimizer):
    """Muon: steps along the orthogonalised momentum.

    With the polar factor O of the momentum of a matrix W,

        W <- (1 - lr * weight_decay) W - lr * scale * O

    where ``scale`` depends only on the shape ``[m, n]``. On float32 matrices and with ``ns_dtype="bfloat16"`` its steps
    are bit for bit those of ``torch.optim.Muon``, whose state it can load together with its convention for the learning
    rate. Momentum is float32 for bfloat16 weights. Kernels of convolutions are matrices ``[out, in * places]``.

    >>> weight = torch.nn.Parameter(torch.zeros(3, 3))
    >>> weight.grad = torch.diag(torch.tensor([1.0, 10.0, 100.0]))
    >>> Muon([weight], lr=1.0, lr_convention="original").step()
    >>> [0.5 < -float(entry) < 1.3 for entry in weight.detach().diagonal()]  # alike, whatever their gradients
    [True, True, True]

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        momentum: decay of the average gradient per step.
        nesterov: whether to use Nesterov's look-ahead.
        lr_convention: ``"match_rms_adamw"`` for a scale of ``0.2 sqrt(max(m, n))``, with which entries have the root
            mean square of an AdamW update (arXiv 2502.16982); ``"original"`` for ``sqrt(max(1, m / n))`` (Jordan 2024).
        weight_decay: decoupled weight decay.
        iteration: options of :class:`~cbs.optimizers.spectral.SpectralOptimizer`.

    Raises:
        ValueError: if a value is invalid, or a parameter is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        lr_convention: str = "match_rms_adamw",
        weight_decay: float = 0.0,
        **iteration: Any,
    ) -> None:
        super().__init__(params, locals(), **iteration)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # torch.optim.Muon has another name for the convention.
        for group in state["param_groups"]:
            if "adjust_lr_fn" in group:
                if group.pop("eps", NORM_FLOOR) != NORM_FLOOR:
                    raise ValueError(f"Muon divides by norms of at least {NORM_FLOOR}; the state names another eps")
                group["lr_convention"] = group.pop("adjust_lr_fn") or "original"
        super().__setstate__(state)

    def check(self, group: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for invalid options."""
        super().check(group)
        check_choice("lr_convention", group["lr_convention"], LR_CONVENTIONS)

    def update(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> None:
        """Decay ``params`` and move them against their directions."""
        lr = float(group["lr"])
        torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        for param, direction in zip(params, self.directions(params, momenta, group), strict=True):
            scale = shape_scale(direction.shape, group["lr_convention"])
            param.add_(as_parameter(direction, param.shape, group["layout"]), alpha=-lr * scale)

    def directions(self, params: list[Tensor], momenta: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the directions that ``scale`` multiplies: the polar factors."""
        return self.polar_factors(momenta, group)


def shape_scale(shape: torch.Size, convention: str) -> float:
    """Return the scale of a matrix ``[m, n]`` under a convention for the learning rate; see :class:`Muon`."""
    rows, columns = shape[-2:]
    if convention == "original":
        return math.sqrt(max(1, rows / columns))
    # 0.2: about the root mean square of an AdamW update (Liu et al. 2025, arXiv 2502.16982).
    return 0.2 * math.sqrt(max(rows, columns))


def registered(name: str, kind: type[Muon], summary: str, **more: Any) -> Any:
    """Register a kind of Muon beside AdamW; returns what builds it."""
    return optimizer(
        name,
        lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
        family="spectral",
        geometry={kind: "nuclear"},
        width_rule="spectral",
        options_of=kind,
        **more,
    )(beside_adamw(kind, summary))


muon = registered(
    "muon", Muon, "Orthogonalised momentum on hidden matrices, AdamW on the rest.",
    paper="Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982",
    known_as=("muon", "scion"),
)  # fmt: skip
