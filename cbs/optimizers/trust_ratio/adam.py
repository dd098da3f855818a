"""Trust ratios on Adam's direction: what LAMB and MERIT share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cbs.optimizers.contract import check_size
from cbs.optimizers.trust_ratio.blocks import Block, Tile
from cbs.optimizers.trust_ratio.core import TrustRatioOptimizer, never_waits


class AdamTrustRatio(TrustRatioOptimizer):
    """Trust ratios on Adam's direction.

    With the moments of the gradient g, divided by ``1 - beta^step`` where ``bias_correction`` is set,

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        d  = m / (sqrt(v) + eps) + weight_decay * w

    Weight decay is part of the direction, so it goes through the ratio too. Options beside those of
    :class:`~cbs.optimizers.trust_ratio.core.TrustRatioOptimizer`: ``betas``, ``eps`` and ``bias_correction``.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def begin(
        self, group: Mapping[str, Any], block: Block, states: list[dict[str, Any]]
    ) -> tuple[Any, Any] | None:
        """Count the step; ``sqrt(1 - beta2^step)`` and its quotient by ``1 - beta1^step``, if they correct the bias.

        Both are numbers where all parameters took as many steps, else vectors ``[entries]``, or ``[]`` of one alone.
        """
        steps = [state["step"] for state in states]
        # A tensor is added in half the time of a number, of which torch would make a tensor for each of them.
        torch._foreach_add_(steps, torch.ones_like(steps[0]), alpha=1.0)
        if not group["bias_correction"]:
            return None
        count: float | Tensor = float(steps[0]) if not never_waits(group) else steps[0]
        if len(steps) > 1 and (never_waits(group) or any(float(step) != count for step in steps)):
            lengths = torch.tensor(block.lengths, device=block.kind[0])
            every = torch.stack(steps).to(*block.kind)
            count = every.repeat_interleave(lengths, output_size=sum(block.lengths))
        first, second = (_bias(count, beta) for beta in group["betas"])
        return second**0.5, second**0.5 / first

    def direct(self, tile: Tile, group: Mapping[str, Any], decay: float, begun: Any, *, advance: bool) -> None:
        """``out <- m / (sqrt(v) + eps) + weight_decay * w``, after the moments moved if ``advance``."""
        (beta1, beta2), (mean, square), out = group["betas"], tile.states, tile.out
        if advance:
            mean.lerp_(tile.gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(tile.gradient, tile.gradient, value=1 - beta2)
        torch.sqrt(square, out=out)
        if begun is None:
            torch.div(mean, out.add_(group["eps"]), out=out)
        else:
            # (m/c1) / (sqrt(v/c2) + eps) = (sqrt(c2)/c1) m / (sqrt(v) + eps sqrt(c2)), in two passes fewer.
            root, quotient = begun
            torch.div(mean, out.add_(group["eps"] * root), out=out).mul_(quotient)
        if decay:
            out.add_(tile.weight, alpha=decay)

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_size("eps", group["eps"])
        betas = group["betas"]
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")

    def _state_of(self, param: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        state = self.state[param]
        if not isinstance(state.get("step"), Tensor):
            device = param.device if group["capturable"] else None
            state["step"] = torch.tensor(float(state.get("step", 0.0)), dtype=torch.float32, device=device)
        return super()._state_of(param, group)


def _bias(count: Any, beta: float) -> Any:
    """``1 - beta^count``, without the loss of digits in the difference."""
    exponent = count * (math.log(beta) if beta else -math.inf)
    return -(torch.expm1(exponent) if isinstance(exponent, Tensor) else math.expm1(exponent))
