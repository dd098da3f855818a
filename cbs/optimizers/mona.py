"""MONA: Muon on gradients with an acceleration term (Li et al. 2026, arXiv 2605.26842)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_decay, misfit
from cbs.optimizers.muon import Muon
from cbs.optimizers.spectral.base import SpectralOptimizer, beside_adamw
from cbs.registry.values import is_number


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


mona = optimizer(
    "mona",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2),
    family="spectral",
    geometry={Mona: "nuclear"},
    width_rule="spectral",
    paper="Li et al. 2026, arXiv 2605.26842",
    options_of=Mona,
)(beside_adamw(Mona, "Muon on gradients moved towards their average, AdamW on the rest."))
