"""MERIT: a ratio of largest entries for each row, column and tensor (ICML 2025, arXiv 2508.20577)."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cbs.optimizers.base import optimizer
from cbs.optimizers.contract import check_choice
from cbs.optimizers.trust_ratio.blocks import NORMS, NormSpec, ParameterBlock
from cbs.optimizers.trust_ratio.core import AdamTrustRatio

_VARIANTS = ("code", "paper")
# The clip is skipped where no update exceeds this fraction of it; the margin is far more than rounding
_CLIP_MARGIN = 0.999


@optimizer(
    "merit",
    lr_grid=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    family="trust ratio",
    geometry="l1",
    paper="MERIT, ICML 2025, arXiv 2508.20577",
    width_rule="spectral",
    defaults={"betas": (0.9, 0.99)},
    decoupled_decay=False,
    published={"betas": (0.9, 0.999)},
)
class MERIT(AdamTrustRatio):
    """Adam's direction scaled entry by entry to the largest weights of its row, column and tensor, then clipped.

    Algorithm 1 of arXiv 2508.20577, the maximum-normalised elementwise ratio, by default as in the released code.

    With the moments m, v of a matrix w, not bias-corrected, and ``max`` over absolute values,

        d       = m / (sqrt(v) + eps) + weight_decay * w
        s(i, j) = max( max w(i, :) / max d(i, :),  max w(:, j) / max d(:, j),  max w / max d )
        w      <- w - lr * clip(s * d, -1, 1)

    so no entry moves by more than ``lr``. As ``|s * d| <= max w`` wherever all three ratios are used, the clip acts
    only on tensors with an entry above 1, and on rows and columns that are all 0.

    The class has the released code's ``betas``, which the paper does not give; in a sweep they are (0.9, 0.99), as for
    the whole Adam family.

    Cases that the paper does not define follow the released code with ``variant="code"``:

    - s is 1 in every row and every column in which w or d is all 0, whatever the ratio of the whole tensor.
    - A tensor of fewer than two dimensions has only the ratio of the whole tensor, 1 where w or d is all 0.
    - In a tensor of three or more dimensions a row runs along dimension 1 and a column along dimension 0, for each
      index of the other dimensions; the lower bound is over the whole tensor.
    - No tensor is exempt: embeddings, biases and normalisation weights are scaled, clipped and decayed like the rest.

    ``variant="paper"`` reads Algorithm 1 literally: the ratio of a row of w that is all 0 is 0, so s is the largest of
    the other two, and a tensor of three or more dimensions is a matrix whose columns flatten the dimensions from the
    second on. s is 1 only where all of w or all of d is 0.

    Ablations: ``clip=None`` does not clip; ``lower_bound=False`` leaves the ratio of the whole tensor out of the
    maximum; ``elementwise=False`` uses only that ratio (LAMB with the max norm); ``norm="l2"`` uses Euclidean norms in
    all ratios. With s = 1 (``ratio_from_ndim`` above the dimensions of every tensor) and no clip it is Adam without
    bias correction.

    With the defaults and a matrix w, a step equals these lines:

    >>> def plain_step(w, g, m, v, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, clip=1.0):
    ...     # the moments of the gradient g, and the direction of Adam without bias correction
    ...     m.mul_(betas[0]).add_((1 - betas[0]) * g)
    ...     v.mul_(betas[1]).add_((1 - betas[1]) * g**2)
    ...     d = m / (v.sqrt() + eps) + weight_decay * w
    ...     # the largest entry of every row, of every column, and of the whole
    ...     row_w, row_d = (x.abs().amax(dim=1, keepdim=True) for x in (w, d))
    ...     column_w, column_d = (x.abs().amax(dim=0, keepdim=True) for x in (w, d))
    ...     whole_w, whole_d = w.abs().max(), d.abs().max()
    ...     # how much larger the weights are than the direction, by each of the three; the largest counts
    ...     by_row, by_column, by_whole = row_w / row_d, column_w / column_d, whole_w / whole_d
    ...     s = torch.maximum(torch.maximum(by_row, by_column), by_whole)
    ...     # rows and columns of nothing but zeros have no ratio: there the step is Adam's
    ...     nothing = (row_w == 0) | (row_d == 0) | (column_w == 0) | (column_d == 0)
    ...     s = torch.where(nothing, torch.ones_like(s), s)
    ...     w.sub_(lr * (s * d).clamp(-clip, clip))
    >>> # one step of both, from moments of zero
    >>> weight = torch.nn.Parameter(torch.tensor([[0.5, -0.2], [0.1, 0.4]]))
    >>> weight.grad = torch.tensor([[0.3, 0.1], [-0.2, 0.6]])
    >>> w, m, v = weight.detach().clone(), torch.zeros(2, 2), torch.zeros(2, 2)
    >>> plain_step(w, weight.grad, m, v, lr=0.1)
    >>> MERIT([weight], lr=0.1).step()
    >>> torch.allclose(weight, w)
    True

    Args:
        params: parameters, or groups of them as torch.optim takes them.
        lr: learning rate, a number or a tensor: the largest change of an entry per step.
        betas: decay of the first and of the second moment per step.
        eps: added to the square root of the second moment.
        weight_decay: coefficient of the weight inside the direction.
        bias_correction: whether the moments are divided by ``1 - beta^step``.
        variant: ``"code"`` or ``"paper"``.
        clip: bound of the absolute value of ``s * d``; ``None`` for no bound.
        lower_bound: whether s is at least the ratio of the whole tensor.
        elementwise: whether rows and columns have ratios.
        norm: ``"max"`` or ``"l2"``.
        ratio_from_ndim: tensors of fewer dimensions have s = 1.
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
        bias_correction: bool = False,
        variant: str = "code",
        clip: float | None = 1.0,
        lower_bound: bool = True,
        elementwise: bool = True,
        norm: str = "max",
        ratio_from_ndim: int = 0,
        decay_from_ndim: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, locals())

    def measure(self, group: Mapping[str, Any]) -> NormSpec:
        return NormSpec(group["norm"], group["elementwise"], group["variant"] == "paper")

    def ratios(self, weights: Tensor, directions: Tensor, group: Mapping[str, Any], decay: float) -> Tensor:
        """Return ``w / d``; NaN, which maxima propagate, marks rows, columns and tensors in which s is 1."""
        if group["variant"] == "paper":
            return (weights / directions).masked_fill_(directions == 0, 0.0)
        return (weights / directions).masked_fill_(torch.minimum(weights, directions) == 0, torch.nan)

    def look(self, block: ParameterBlock, group: Mapping[str, Any]) -> tuple[bool, bool]:
        """Return whether s is finite everywhere, and whether ``|s * d|``, then at most ``max w``, stays below the
        clip.
        """
        low, high = block.ratios.aminmax()  # both are NaN if any ratio is
        finite = bool(low > 0) and bool(high < math.inf)
        clip = math.inf if group["clip"] is None else _CLIP_MARGIN * group["clip"]
        return finite, finite and bool(block.norms[0].amax() < clip)

    def apply(
        self, block: ParameterBlock, group: Mapping[str, Any], decay: float, lr: float | Tensor, seen: Any
    ) -> None:
        """Add ``lr * clip(s * out)`` to the weights."""
        finite, unclipped = seen or (False, False)
        for tile in block.tiles:
            for spare, (whole, *lines) in zip(tile.spares, tile.factors, strict=False):
                if group["variant"] == "paper":
                    # Where all of w is 0, so is every ratio.
                    whole = torch.where(whole == 0, torch.nan, whole)
                if not lines:
                    spare.copy_(whole)
                    continue
                rows, columns = lines
                if group["lower_bound"]:
                    rows = torch.maximum(rows, whole)
                elif not finite:
                    rows = torch.where(whole.isnan(), whole, rows)
                torch.maximum(rows, columns, out=spare)
            factor = tile.spare if tile.factors else None
            if factor is not None and not finite:
                # Also replaces an overflowed ratio by the largest number, so that 0 * s stays 0.
                factor.nan_to_num_(nan=1.0)
            if group["clip"] is not None and not unclipped:
                if factor is not None:
                    tile.out.mul_(factor)
                tile.out.clamp_(-group["clip"], group["clip"])
                factor = None
            block.move(lr, factor, tile)

    def check(self, group: Mapping[str, Any]) -> None:
        super().check(group)
        if group["clip"] is not None and not group["clip"] > 0.0:
            raise ValueError(f"clip must be None or above 0, got {group['clip']}")
        check_choice("variant", group["variant"], _VARIANTS)
        check_choice("norm", group["norm"], NORMS)
        if not group["elementwise"] and not group["lower_bound"]:
            raise ValueError("elementwise and lower_bound are both False, which leaves no ratio; keep one of them")
