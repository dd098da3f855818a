"""LAMB: one ratio of Euclidean norms for each tensor (You et al. 2020, arXiv 1904.00962)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_size
from cbs.optimizers.trust_ratio.core import AdamTrustRatio


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
    The first version of the paper corrects the bias, as here by default and in NVIDIA's BERT (DeepLearningExamples,
    issue 215); the third does not (``bias_correction=False``), nor does the first author's code for ResNet-50
    (repository fastalgo/imagenet_resnet50_lamb). The class has the paper's ``betas``; in a sweep they are (0.9, 0.99),
    as for the whole Adam family.

    Without ratio (``ratio_from_ndim`` above the dimensions of every tensor) LAMB is torch's AdamW: its weight decay
    moves by ``lr * weight_decay * w`` then, which is AdamW's decoupled decay.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([1.0, 1.0])
    >>> LAMB([weight], lr=0.1).step()
    >>> round(float((weight.detach() - torch.tensor([3.0, 4.0])).norm()), 3)  # a tenth of the norm of the weights, 5
    0.5

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate, a number or a tensor: the relative change of a tensor's norm per step.
        betas: decay of the first and of the second moment per step.
        eps: added to the square root of the second moment.
        weight_decay: coefficient of the weight inside the direction.
        bias_correction: whether the moments are divided by ``1 - beta^step``.
        gamma_l: lower bound of phi.
        gamma_u: upper bound of phi; ``None`` for no bound.
        ratio_from_ndim: tensors of fewer dimensions have ratio 1.
        decay_from_ndim: tensors of fewer dimensions have no weight decay.
        foreach: ``False`` updates tensor by tensor.
        capturable: whether a step must not wait for the device.
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
        gamma_l: float = 0.0,
        gamma_u: float | None = None,
        ratio_from_ndim: int = 0,
        decay_from_ndim: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, locals())

    def ratios(self, weights: Tensor, directions: Tensor, group: Mapping[str, Any], decay: float) -> Tensor:
        """Return ``phi(|w|) / |d|``, 1 where either is 0."""
        if group["gamma_l"] > 0.0 or group["gamma_u"] is not None:
            weights = weights.clamp(group["gamma_l"], group["gamma_u"])
        return (weights / directions).masked_fill_(torch.minimum(weights, directions) == 0, 1.0)

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        check_size("gamma_l", group["gamma_l"])
        if group["gamma_u"] is not None and not group["gamma_l"] <= group["gamma_u"]:
            raise ValueError(f"gamma_u must be None or at least gamma_l = {group['gamma_l']}, got {group['gamma_u']}")
