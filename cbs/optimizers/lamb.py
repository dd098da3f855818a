"""LAMB: one ratio of Euclidean norms for each tensor (You et al. 2020, arXiv 1904.00962)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_choice, check_size
from cbs.optimizers.trust_ratio.adam import AdamTrustRatio, bias
from cbs.optimizers.trust_ratio.blocks import ParameterBlock

_LOOK_AHEADS = ("none", "first", "both")


@optimizer(
    "lamb",
    lr_grid=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    family="trust ratio",
    geometry="l1",
    paper="You et al. 2020, arXiv 1904.00962",
    width_rule="spectral",
    defaults={"betas": (0.9, 0.99)},
    decoupled_decay=False,
    published={"betas": (0.9, 0.999)},
)
class LAMB(AdamTrustRatio):
    """Adam's direction scaled to each tensor's Euclidean norm.

    Layerwise adaptive moments for batch training, arXiv 1904.00962, Algorithm 2.

    With the bias-corrected moments m, v of a tensor w and ``phi(z) = min(max(z, gamma_l), gamma_u)``,

        d  = m / (sqrt(v) + eps) + weight_decay * w
        w <- w - lr * (phi(|w|) / |d|) * d

    where ``|.|`` is the Euclidean norm over the whole tensor. The ratio is 1 where ``phi(|w|)`` or ``|d|`` is 0, so
    tensors that start at 0 move; the paper does not define this case, optax and others do the same.

    The defaults are those of the algorithm as printed: phi is the identity, and no tensor is exempt, so biases and
    normalisation weights are scaled and decayed like the rest (as in optax). The authors' BERT code is said to exempt
    both from weight decay, and some ports of it from the ratio as well: ``decay_from_ndim=2``, ``ratio_from_ndim=2``.
    Versions of the paper differ in bias correction; by default it is applied. The class has the paper's ``betas``; in a
    sweep they are (0.9, 0.99), as for the whole Adam family.

    ``nesterov="first"`` is meant to be the paper's N-LAMB and ``"both"`` its NN-LAMB. Its appendix, which defines them,
    could not be compared: here they are derived from Dozat's Nadam (cs229.stanford.edu/proj2015/054_report.pdf) with a
    constant beta1. At step t, with the averages before bias correction, its look-ahead takes the place of m,

        m = beta1 m_t / (1 - beta1^(t+1)) + (1 - beta1) g_t / (1 - beta1^t)

    and with ``"both"`` the same of beta2, ``v_t`` and ``g_t^2`` takes the place of v.

    Without ratio (``ratio_from_ndim`` above the dimensions of every tensor) LAMB is torch's AdamW: weight decay
    is then ``lr * weight_decay * w`` per step, which is AdamW's decoupled decay.

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate, a number or a tensor: the relative change of a tensor's norm per step.
        betas: decay of the first and of the second moment per step.
        eps: added to the square root of the second moment.
        weight_decay: coefficient of the weight inside the direction.
        bias_correction: whether the moments are divided by ``1 - beta^step``.
        nesterov: which moments look ahead, ``"none"``, ``"first"`` or ``"both"``; needs ``bias_correction``.
        gamma_l: lower bound of phi.
        gamma_u: upper bound of phi; ``None`` for no bound.
        ratio_from_ndim: tensors of fewer dimensions have ratio 1.
        decay_from_ndim: tensors of fewer dimensions have no weight decay.
        foreach: ``False`` updates tensor by tensor.
        capturable: whether a step must not wait for the device.

    Raises:
        ValueError: if a value is invalid.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = True,
        nesterov: str = "none",
        gamma_l: float = 0.0,
        gamma_u: float | None = None,
        ratio_from_ndim: int = 0,
        decay_from_ndim: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, locals())

    def direct(self, block: ParameterBlock, group: Mapping[str, Any], decay: float) -> None:
        """Compute the direction as in the base class, but with look-ahead moments where the group asks for it."""
        if group["nesterov"] == "none":
            super().direct(block, group, decay)
            return
        (beta1, beta2), (steps, means, squares) = group["betas"], block.states
        torch._foreach_add_(steps, 1.0)
        torch._foreach_lerp_(means, block.gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, block.gradients, block.gradients, 1 - beta2)
        for out, gradient, step, mean, square in zip(block.views, block.gradients, *block.states, strict=True):
            at = step.to(out.dtype)
            both = group["nesterov"] == "both"
            second = _ahead(square, gradient.square(), at, beta2) if both else square / bias(at, beta2)
            torch.div(_ahead(mean, gradient, at, beta1), second.sqrt_().add_(group["eps"]), out=out).neg_()
        if decay:
            block.out.sub_(block.weight, alpha=decay)

    def ratios(self, weights: Tensor, directions: Tensor, group: Mapping[str, Any], decay: float) -> Tensor:
        """Return ``phi(|w|) / |d|``, 1 where either is 0."""
        if group["gamma_l"] > 0.0 or group["gamma_u"] is not None:
            weights = weights.clamp(group["gamma_l"], group["gamma_u"])
        return (weights / directions).masked_fill_(torch.minimum(weights, directions) == 0, 1.0)

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_choice("nesterov", group["nesterov"], _LOOK_AHEADS)
        if group["nesterov"] != "none" and not group["bias_correction"]:
            raise ValueError(f"nesterov={group['nesterov']!r} is defined with bias_correction only; leave one out")
        check_size("gamma_l", group["gamma_l"])
        if group["gamma_u"] is not None and not group["gamma_l"] <= group["gamma_u"]:
            raise ValueError(f"gamma_u must be None or at least gamma_l = {group['gamma_l']}, got {group['gamma_u']}")


def _ahead(average: Tensor, value: Tensor, step: Tensor, beta: float) -> Tensor:
    """Return the bias-corrected average after one more step with the same ``value``, by Dozat's approximation."""
    return average * (beta / bias(step + 1, beta)) + value * ((1 - beta) / bias(step, beta))
