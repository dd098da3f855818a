r"""The geometry of an adaptive optimizer's own second moment: :math:`tr(P\Sigma)/G^\top P G`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import GEOMETRIES
from cbs.noise_scale.geometries.base import Geometry, as_real
from cbs.optimizers.matching import leaves

_ADAPTIVE = ("adam", "rmsprop", "adagrad", "lamb", "merit")
_SECOND_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")
"""Where optimizers keep their second moment: AMSGrad, the Adam family, RMSprop, Adagrad."""


@GEOMETRIES.register("preconditioned")
class Preconditioned(Geometry):
    r"""The noise scale in the metric :math:`P = diag(1/(\sqrt{v} + \epsilon))` by which the optimizer scales gradients.

    T(g) = g' P g is the squared dual of the norm :math:`\|p\|^2 = p^\top P^{-1} p`, so the noise scale is the one of
    McCandlish et al. 2018, equation 2.8, with :math:`P^{-1}` as the step's metric and as the curvature. Read before the
    optimizer's step, v holds earlier gradients only, and signal and noise are unbiased given v; either may be negative.

    v is bias-corrected where the optimizer does so. That factor is common to all tensors with as many steps behind them
    and then cancels in the ratio, up to epsilon; it matters where step counts differ. Momentum, weight decay, learning
    rates and the ratios of LAMB and MERIT are no part of P. Before a tensor's first step there is no v: the result is
    NaN, unless the gradient is zero. Of several parts of an optimizer those with a second moment count.
    """

    name = "preconditioned"
    symbol = r"B_{\mathrm{pre}}"
    exponent = 1
    norms_suffice = False

    def bind(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer is None:
            raise ConfigError("geometry 'preconditioned' reads the optimizer's second moment: pass the optimizer")
        owners = {id(parameter): (part, group) for part, group, parameter in _adaptive(optimizer)}
        self._parameters = parameters
        self._owners = {
            index: owners[id(parameter)] for index, parameter in enumerate(parameters) if id(parameter) in owners
        }
        if not self._owners:
            raise ConfigError(
                f"geometry 'preconditioned' needs a second moment, such as that of AdamW or RMSprop, and "
                f"{type(optimizer).__name__} keeps none for the measured parameters; use 'l2', 'l1' or 'nuclear'"
            )

    def covers(self, index: int) -> bool:
        return index in self._owners

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        squares = gradients.to(torch.promote_types(gradients.dtype, torch.float32)).square().sum(0)
        denominator = self._denominator(index)
        if denominator is None:
            total = squares.sum()
            return torch.where(total == 0, total, torch.nan)
        return (squares / denominator).sum()

    def _denominator(self, index: int) -> Tensor | None:
        part, group = self._owners[index]
        # state is a defaultdict: looking up with [] would create an entry, and optimizers take an entry as started.
        state = part.state.get(self._parameters[index], {})
        if not state:
            return None
        if "exp_inf" in state:
            return state["exp_inf"]
        name = next((name for name in _SECOND_MOMENTS if name in state), None)
        if name is None:
            raise ConfigError(
                f"geometry 'preconditioned' cannot read the second moment of {type(part).__name__}, which keeps "
                f"{', '.join(map(str, state))}; use 'l1'"
            )
        square = as_real(state[name])
        if "grad_avg" in state:
            square = square - state["grad_avg"].square()
        return (square / _bias_correction(state, group)).sqrt().add_(group.get("eps", 0.0))


def _adaptive(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[torch.optim.Optimizer, dict[str, Any], Tensor]]:
    for part in leaves(optimizer):
        names = [kind.__name__.lower() for kind in type(part).__mro__]
        known = any(fragment in name for fragment in _ADAPTIVE for name in names)
        for group in part.param_groups:
            for parameter in group["params"]:
                state = part.state.get(parameter, {})
                muon = group.get("use_muon", state.get("use_muon", False))
                if not muon and (known or any(name in state for name in _SECOND_MOMENTS)):
                    yield part, group, parameter


def _bias_correction(state: Mapping[str, Any], group: Mapping[str, Any]) -> Any:
    """``1 - beta2^step`` where the optimizer counts steps and decays with a beta2, else 1."""
    step = state.get("step", group.get("step"))
    if step is None or "betas" not in group or not group.get("bias_correction", group.get("correct_bias", True)):
        return 1.0
    return 1.0 - group["betas"][1] ** step
