"""Muon on the hidden matrices of a model, AdamW on the rest (Jordan et al. 2024; Liu et al. 2025, arXiv 2502.16982).

Beside it stand NorMuon (Li et al. 2025, arXiv 2510.05491) and MONA (Li et al. 2026, arXiv 2605.26842).
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_choice, check_decay, misfit, state_dtype
from cbs.optimizers.layout import as_parameter
from cbs.optimizers.spectral import NORM_FLOOR, SpectralOptimizer, beside_adamw
from cbs.registry.values import is_number

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


def _registered(name: str, kind: type[Muon], summary: str, **more: Any) -> Any:
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


muon = _registered(
    "muon", Muon, "Orthogonalised momentum on hidden matrices, AdamW on the rest.",
    paper="Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982",
    known_as=("muon", "scion"),
)  # fmt: skip


# Added to square roots and norms in denominators, as in the released code (zichongli5/NorMuon, normuon.py)
FLOOR = 1e-10


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


normuon = _registered(
    "normuon", NorMuon, "Muon with rows of one size on average on hidden matrices, AdamW on the rest.",
    paper="Li et al. 2025, arXiv 2510.05491",
)  # fmt: skip


class Mona(Muon):
    """Muon that averages, in place of the gradient g of a step k, the accelerated one

        a_k = beta_a a_(k-1) + (1 - beta_a) (g_k - g_(k-1)),  a_1 = 0
        g_k + alpha a_k

    The differences add up: ``a_k = (1 - beta_a) (g_k - e_(k-1))`` with the average
    ``e_k = beta_a e_(k-1) + (1 - beta_a) g_k`` that starts at ``e_0 = g_1``, which is all that is kept. With the
    default alpha the accelerated gradient is the mean of the gradient and this average.

    Formulas and defaults are those in which independent ports of the paper agree (palingenesis, ``optim.py``, and
    others); its own algorithm could not be read. Ports differ in the first step, which has no difference: here none is
    added.

    Args:
        params: matrices, or groups of them as torch.optim takes them.
        lr: learning rate.
        acceleration_decay: beta_a, decay of the average of differences per step.
        acceleration: alpha; ``None`` for ``-1 / (2 (1 - beta_a))``.
        momentum: like all further options as in :class:`~cbs.optimizers.muon.Muon`.

    Raises:
        ValueError: if a value is invalid, or a parameter is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        acceleration_decay: float = 0.99,
        acceleration: float | None = None,
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
        check_decay("acceleration_decay", group["acceleration_decay"])
        if group["acceleration"] is not None and not is_number(group["acceleration"]):
            raise ValueError(f"acceleration must be None or a number, got {group['acceleration']!r}")

    def gradient(self, param: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the accelerated gradient, and update the average."""
        gradient, rest = super().gradient(param, group), 1.0 - group["acceleration_decay"]
        # Starts at the first gradient, so that the first step has no difference.
        average = self.state[param].setdefault("average_gradient", gradient.clone())
        if average.shape != param.shape:
            raise misfit(self, "average_gradient", average, param)
        share = -0.5 if group["acceleration"] is None else group["acceleration"] * rest
        accelerated = gradient + share * (gradient - average)
        average.lerp_(gradient, rest)
        return accelerated


mona = _registered(
    "mona", Mona, "Muon on gradients moved towards their average, AdamW on the rest.",
    paper="Li et al. 2026, arXiv 2605.26842",
)  # fmt: skip
