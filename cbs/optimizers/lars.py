"""LARS: momentum SGD with one ratio of Euclidean norms for each tensor (You et al. 2017, arXiv 1708.03888)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_choice, check_decay, check_size
from cbs.optimizers.trust_ratio.blocks import ParameterBlock
from cbs.optimizers.trust_ratio.core import TrustRatioOptimizer

_COEFFICIENTS = {"paper": 1e-3, "optax": 1e-3, "lamb": 1.0}
"""The default trust coefficient of each variant."""


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

    For a tensor w with gradient g, Euclidean norms ``|.|`` over whole tensors and trust coefficient c, by ``variant``:

    - ``"paper"``, the learning rate inside the momentum buffer and the norms of the denominator added:

          v <- momentum * v + lr * c * |w| / (|g| + weight_decay * |w|) * (g + weight_decay * w)
          w <- w - v

    - ``"optax"``, the same with the norm of the sum, ``|g + weight_decay * w|``, in the denominator;
    - ``"lamb"``, as the paper of LAMB restates it (arXiv 1904.00962), the momentum before the ratio, with c = 1:

          m <- momentum * m + (1 - momentum) * (g + weight_decay * w)
          w <- w - lr * c * |w| / |m| * m

    Where ``|w|`` or the other norm is 0, their quotient counts as 1, so tensors that start at 0 move; the ratio is then
    c, and with ``"optax"`` it is 1, as there. The first paper does not define this case.

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
        variant: ``"paper"``, ``"optax"`` or ``"lamb"``.
        trust_coefficient: c; ``None`` for the variant's own, 0.001, 0.001 and 1.
        ratio_from_ndim: tensors of fewer dimensions have ratio 1.
        decay_from_ndim: tensors of fewer dimensions have no weight decay.
        foreach: ``False`` updates tensor by tensor.
        capturable: whether a step must not wait for the device.

    Raises:
        ValueError: if a value is invalid.
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        variant: str = "paper",
        trust_coefficient: float | None = None,
        ratio_from_ndim: int = 0,
        decay_from_ndim: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, locals())

    def direct(self, block: ParameterBlock, group: Mapping[str, Any], decay: float) -> None:
        """Write minus the gradient to ``out``, with weight decay in ``"optax"``; minus the momentum in ``"lamb"``."""
        torch._foreach_copy_(block.views, block.gradients)
        if group["variant"] != "paper" and decay:
            block.out.add_(block.weight, alpha=decay)
        if group["variant"] == "lamb":
            (buffers,) = block.states
            torch._foreach_lerp_(buffers, block.views, 1 - group["momentum"])
            torch._foreach_copy_(block.views, buffers)
        block.out.neg_()

    def ratios(self, weights: Tensor, directions: Tensor, group: Mapping[str, Any], decay: float) -> Tensor:
        """Return ``c |w| / |d|`` with the denominator of the variant."""
        own = group["trust_coefficient"]
        coefficient = _COEFFICIENTS[group["variant"]] if own is None else own
        moving = (weights > 0) & (directions > 0)
        if group["variant"] == "paper":
            directions = directions + decay * weights
        return torch.where(
            moving, coefficient * (weights / directions), 1.0 if group["variant"] == "optax" else coefficient
        )

    def apply(
        self, block: ParameterBlock, group: Mapping[str, Any], decay: float, lr: float | Tensor, seen: Any
    ) -> None:
        """Apply the update through the momentum buffer, which includes past learning rates, except in ``"lamb"``."""
        if group["variant"] == "lamb":
            super().apply(block, group, decay, lr, seen)
            return
        if group["variant"] == "paper" and decay:
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
        check_choice("variant", group["variant"], _COEFFICIENTS)
        if group["trust_coefficient"] is not None:
            check_size("trust_coefficient", group["trust_coefficient"])
