"""Trust ratios on Adam's direction: base class of LAMB and MERIT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.adam import adam

from cbs.optimizers.contract import check_size
from cbs.optimizers.trust_ratio.blocks import ParameterBlock
from cbs.optimizers.trust_ratio.core import TrustRatioOptimizer


class AdamTrustRatio(TrustRatioOptimizer):
    """Trust ratios on Adam's direction.

    With the moments of the gradient g, divided by ``1 - beta^step`` where ``bias_correction`` is set,

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        d  = m / (sqrt(v) + eps) + weight_decay * w

    Weight decay is part of the direction, so the ratio scales it, too. Options in addition to those of
    :class:`~cbs.optimizers.trust_ratio.core.TrustRatioOptimizer`: ``betas``, ``eps`` and ``bias_correction``.
    """

    state_names = ("step", "exp_avg", "exp_avg_sq")

    def direct(self, block: ParameterBlock, group: Mapping[str, Any], decay: float) -> None:
        """Write ``-(m / (sqrt(v) + eps) + weight_decay * w)`` to ``out``, after updating the moments."""
        (beta1, beta2), (steps, means, squares), out = group["betas"], block.states, block.out
        # torch's Adam with a learning rate of 1 subtracts m / (sqrt(v) + eps) from the tensors passed as parameters.
        if decay:
            torch.mul(block.weight, -decay, out=out)
        else:
            out.zero_()
        if not group["bias_correction"]:
            # Adding a tensor takes half the time: torch would convert a number to a tensor for every parameter.
            torch._foreach_add_(steps, torch.ones_like(steps[0]), alpha=1.0)
            # With an infinite step count torch's bias correction does nothing.
            steps = [torch.full_like(steps[0], math.inf)] * len(steps)
        adam(
            block.views,
            block.gradients,
            means,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=1.0,
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_size("eps", group["eps"])
        betas = group["betas"]
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")
