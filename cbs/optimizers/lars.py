"""LARS: momentum SGD with one ratio of Euclidean norms for each tensor (You et al. 2017, arXiv 1708.03888)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_decay, check_size
from cbs.optimizers.trust_ratio.blocks import ParameterBlock
from cbs.optimizers.trust_ratio.core import TrustRatioOptimizer


@optimizer(
    "lars",
    lr_grid=(0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
    family="trust ratio",
    geometry="l2",
    paper="You et al. 2017, arXiv 1708.03888",
    width_rule="spectral",
    decoupled_decay=False,
)
class LARS(TrustRatioOptimizer):
    """Momentum SGD scaled to each tensor's Euclidean norm.

    Layerwise adaptive rate scaling, arXiv 1708.03888.

    For a tensor w with gradient g, Euclidean norms ``|.|`` over whole tensors and trust coefficient c, the learning
    rate stands inside the momentum buffer:

        v <- momentum * v + lr * c * |w| / (|g| + weight_decay * |w|) * (g + weight_decay * w)
        w <- w - v

    Where ``|w|`` or ``|g|`` is 0, their quotient counts as 1, so tensors that start at 0 move. The paper does not
    define this case.

    No tensor is exempt by default. Common practice in vision exempts biases and normalisation weights from ratio and
    weight decay (``ratio_from_ndim=2``, ``decay_from_ndim=2``); these are then trained by plain momentum SGD with
    ``lr``, which is some hundred times its usual learning rate where c is 0.001. In a transformer, normalisation gains
    train well with the ratio.

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate, a number or a tensor; ``lr * c`` is the relative change of a tensor's norm per step, before
            momentum accumulates steps.
        momentum: decay of the momentum buffer per step.
        weight_decay: coefficient of the weight that is added to the gradient.
        trust_coefficient: c.
        ratio_from_ndim: tensors of fewer dimensions have ratio 1.
        decay_from_ndim: tensors of fewer dimensions have no weight decay.
        foreach: ``False`` updates tensor by tensor.
        capturable: whether a step must not wait for the device.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> weight.grad = torch.tensor([0.0, 2.0])  # the norms are 5 and 2
        >>> LARS([weight], lr=1.0, momentum=0.0, weight_decay=0.0, trust_coefficient=0.02).step()
        >>> [round(value, 3) for value in weight.tolist()]  # 0.02 x 5 / 2 x 2 less
        [3.0, 3.9]
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        trust_coefficient: float = 1e-3,
        ratio_from_ndim: int = 0,
        decay_from_ndim: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, locals())

    def direct(self, block: ParameterBlock, group: Mapping[str, Any], decay: float) -> None:
        """Write minus the gradient to ``out``."""
        torch._foreach_copy_(block.views, block.gradients)
        block.out.neg_()

    def ratios(self, weights: Tensor, directions: Tensor, group: Mapping[str, Any], decay: float) -> Tensor:
        """Return ``c |w| / (|g| + weight_decay |w|)``, c where either is 0."""
        moving, coefficient = (weights > 0) & (directions > 0), group["trust_coefficient"]
        return torch.where(moving, coefficient * (weights / (directions + decay * weights)), coefficient)

    def apply(
        self, block: ParameterBlock, group: Mapping[str, Any], decay: float, lr: float | Tensor, seen: Any
    ) -> None:
        """Apply the update through the momentum buffer, which includes past learning rates."""
        if decay:
            # Scaled by the ratio, but not part of its denominator.
            block.out.sub_(block.weight, alpha=decay)
        for out, (ratio,) in zip(block.outs, block.factors, strict=False):
            out.mul_(ratio)
        (buffers,) = block.states
        torch._foreach_mul_(buffers, group["momentum"])
        block.out.mul_(lr)
        torch._foreach_sub_(buffers, block.views)
        torch._foreach_sub_(block.params, buffers)

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_decay("momentum", group["momentum"])
        check_size("trust_coefficient", group["trust_coefficient"])
