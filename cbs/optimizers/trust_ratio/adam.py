"""Trust ratios on Adam's direction: what LAMB and MERIT share."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cbs.optimizers.trust_ratio import kernel, native
from cbs.optimizers.trust_ratio.blocks import Bucket, Tile
from cbs.optimizers.trust_ratio.core import TrustRatioOptimizer, check_size

_fused_adamw: Any = getattr(torch, "_fused_adamw_", None)
_FUSED_DEVICES = ("cpu", "cuda")
_FUSED_TYPES = (torch.float32, torch.float64)


class AdamTrustRatio(TrustRatioOptimizer):
    """Trust ratios on Adam's direction.

    With the moments of the gradient g, divided by ``1 - beta^step`` where ``bias_correction`` is set,

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        d  = m / (sqrt(v) + eps) + weight_decay * w

    Weight decay is part of the direction, so it goes through the ratio too. Options beside those of
    :class:`~cbs.optimizers.trust_ratio.core.TrustRatioOptimizer`: ``betas``, ``eps``, ``bias_correction`` and
    ``native``, whether compiled code updates the tensors it can serve (``None``: where it is there or can be made), see
    :mod:`cbs.optimizers.trust_ratio.native`.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def direct(self, tile: Tile, group: dict[str, Any], *, advance: bool) -> None:
        """``out <- -(m / (sqrt(v) + eps) + weight_decay * w)``, after the moments moved if ``advance``."""
        mean, square = tile.states
        descend(
            tile.out,
            tile.weight,
            tile.gradient if advance else None,
            mean,
            square,
            tile.step if group["bias_correction"] else None,
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=tile.decay,
            fused=tile.fused,
        )

    def native_rule(self, group: dict[str, Any]) -> native.Rule | None:
        """How compiled code scales the direction; ``None`` where it cannot."""
        raise NotImplementedError

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        if not isinstance(group["native"], bool | None):
            raise ValueError(f"native must be None, True or False, got {group['native']!r}")
        if group["native"]:
            kernel.required()
        check_size("eps", group["eps"])
        betas = group["betas"]
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["native"] is None and any(native.takes(param, group) for param in group["params"]):
            # Made now rather than in the first step, which someone may be timing.
            kernel.automatic()

    def _update(self, bucket: Bucket, group: dict[str, Any]) -> None:
        rule = None if group["native"] is False else self.native_rule(group)
        if rule is None or not native.update(bucket, group, rule):
            super()._update(bucket, group)


def descend(
    out: Tensor,
    weight: Tensor,
    gradient: Tensor | None,
    mean: Tensor,
    square: Tensor,
    step: Tensor | None,
    *,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    fused: bool,
) -> None:
    """Update the moments, then ``out <- -(m / (sqrt(v) + eps) + weight_decay * w)``. All vectors are contiguous.

    Args:
        out: overwritten with the descent direction, shape ``[entries]``.
        weight: the weights, same shape.
        gradient: the gradients, same shape; ``None`` leaves the moments as they are.
        mean: first moment, same shape.
        square: second moment, same shape.
        step: number of updates including this one, shape ``[]``; the moments are divided by ``1 - beta^step``. ``None``
            takes them as they are.
        betas: decay of the first and of the second moment.
        eps: added to the root of the second moment.
        weight_decay: coefficient of the weight.
        fused: whether torch's fused AdamW may be used where there is one for the device and the type.
    """
    if gradient is not None and fused and has_fused(out):
        # It subtracts m / (sqrt(v) + eps) from its parameters in the pass that updates the moments: given
        # -weight_decay * w for parameters, it leaves the descent direction there.
        if weight_decay:
            torch.mul(weight, -weight_decay, out=out)
        else:
            out.zero_()
        # After infinitely many steps there is no bias to correct.
        count = torch.full((), math.inf, device=out.device) if step is None else step
        _fused_adamw(
            [out],
            [gradient],
            [mean],
            [square],
            [],
            [count],
            lr=1.0,
            beta1=betas[0],
            beta2=betas[1],
            weight_decay=0.0,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )
        return
    if gradient is not None:
        mean.lerp_(gradient, 1 - betas[0])
        square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    torch.sqrt(square, out=out)
    if step is None:
        torch.div(mean, out.add_(eps), out=out).neg_()
    else:
        # (m/c1) / (sqrt(v/c2) + eps) = (sqrt(c2)/c1) m / (sqrt(v) + eps sqrt(c2)), in two passes fewer.
        root = _bias(step, betas[1], out.dtype).sqrt_()
        torch.div(mean, out.add_(eps * root), out=out).mul_(-root / _bias(step, betas[0], out.dtype))
    if weight_decay:
        out.sub_(weight, alpha=weight_decay)


def has_fused(out: Tensor) -> bool:
    """Whether torch has a fused AdamW for the device and the type of ``out``."""
    return _fused_adamw is not None and out.device.type in _FUSED_DEVICES and out.dtype in _FUSED_TYPES


def _bias(step: Tensor, beta: float, dtype: torch.dtype) -> Tensor:
    """``1 - beta^step``, without the loss of digits in the difference."""
    if beta == 0.0:
        return torch.ones((), dtype=dtype, device=step.device)
    return -torch.expm1(step.to(dtype) * math.log(beta))
