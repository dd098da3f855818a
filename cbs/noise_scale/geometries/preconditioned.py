r"""The geometry of an adaptive optimizer's own second moment: :math:`tr(P\Sigma)/G^\top P G`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.geometries import GEOMETRIES
from cbs.noise_scale.geometries.base import Geometry
from cbs.optimizers.second_moment import root_of_second_moment, scaled_by_second_moments


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
