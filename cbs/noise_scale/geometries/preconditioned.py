r"""The geometry of an adaptive optimizer's own second moment: :math:`tr(P\Sigma)/G^\top P G`.

The moment is read from the optimizer's state, of any implementation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import GEOMETRIES, Geometry
from cbs.optimizers.matching import leaves

_ADAPTIVE = ("adam", "rmsprop", "adagrad", "lamb", "merit")
# Names of the state that holds it: AMSGrad, the Adam family, RMSprop, Adagrad
_SECOND_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")


@GEOMETRIES.register("preconditioned")
class Preconditioned(Geometry):
    r"""The noise scale in the metric :math:`P = diag(1/(\sqrt{v} + \epsilon))` by which the optimizer scales gradients.

    T(g) = g' P g is the square of the norm that is dual to :math:`\|p\|^2 = p^\top P^{-1} p`, so the noise scale is
    that of McCandlish et al. 2018, equation 2.8, with :math:`P^{-1}` as the step's metric and as the curvature. It is
    measured before the optimizer's step, when v holds only earlier gradients, so signal and noise are unbiased given v;
    either may be negative.

    v is bias-corrected where the optimizer does so. The correction is the same for all tensors with the same number of
    steps and then cancels in the ratio, up to epsilon; it matters where step counts differ. Momentum, weight decay,
    learning rates and the trust ratios of LAMB and MERIT are not part of P. Before a tensor's first step there is no v:
    the result is NaN, unless the gradient is zero. Of several parts those with a second moment are measured.
    """

    name = "preconditioned"
    symbol = r"B_{\mathrm{pre}}"
    exponent = 1
    norms_suffice = False

    def bind(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer is None:
            raise ConfigError("geometry 'preconditioned' reads the optimizer's second moment: pass the optimizer")
        scaled = {id(parameter): (part, group) for part, group, parameter in scaled_by_second_moments(optimizer)}
        self._parameters = parameters
        self._owners = {
            index: scaled[id(parameter)] for index, parameter in enumerate(parameters) if id(parameter) in scaled
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
        denominator = root_of_second_moment(*self._owners[index], self._parameters[index])
        if denominator is None:
            total = squares.sum()
            return torch.where(total == 0, total, torch.nan)
        return (squares / denominator).sum()


def scaled_by_second_moments(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[torch.optim.Optimizer, dict[str, Any], Tensor]]:
    """Yield the tensors whose gradients an optimizer divides by the root of a second moment.

    Each comes with the part of the optimizer that updates it and its parameter group.
    """
    for part in leaves(optimizer):
        names = [kind.__name__.lower() for kind in type(part).__mro__]
        known = any(fragment in name for fragment in _ADAPTIVE for name in names)
        for group in part.param_groups:
            for parameter in group["params"]:
                state = part.state.get(parameter, {})
                muon = group.get("use_muon", state.get("use_muon", False))
                if not muon and (known or any(name in state for name in _SECOND_MOMENTS)):
                    yield part, group, parameter


def root_of_second_moment(part: torch.optim.Optimizer, group: Mapping[str, Any], parameter: Tensor) -> Tensor | None:
    """Return the denominator of a tensor's gradient; ``None`` before its first step.

    This is the square root of the second moment, bias-corrected where the optimizer does so, plus epsilon. Complex
    numbers are treated as pairs of real ones, as optimizers do.

    Raises:
        ConfigError: if the optimizer keeps no second moment that is known.
    """
    # state is a defaultdict: [] would create an entry, which optimizers take as initialized.
    state = part.state.get(parameter, {})
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
    square = state[name]
    square = torch.view_as_real(square) if square.is_complex() else square
    if "grad_avg" in state:
        square = square - state["grad_avg"].square()
    return (square / _bias_correction(state, group)).sqrt().add_(group.get("eps", 0.0))


def _bias_correction(state: Mapping[str, Any], group: Mapping[str, Any]) -> Any:
    """Return ``1 - beta2^step`` where the optimizer counts steps and decays with a beta2, else 1."""
    step = state.get("step", group.get("step"))
    if step is None or "betas" not in group or not group.get("bias_correction", group.get("correct_bias", True)):
        return 1.0
    return 1.0 - group["betas"][1] ** step
