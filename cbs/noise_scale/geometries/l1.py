r"""The geometry of sign methods: :math:`B_{\ell_1} = (\|\sigma\|_1/\|G\|_1)^2` (Naganuma et al., arXiv 2602.03001)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cbs.noise_scale.geometries import GEOMETRIES, Geometry
from cbs.noise_scale.moments import Sizes, solve_moments


@GEOMETRIES.register("l1")
class L1(Geometry):
    r"""The noise scale of signSGD, Signum, Lion and, because they are close to sign methods, the Adam family.

    Noise is :math:`\|\sigma\|_1`, with :math:`\sigma_i` the standard deviation of coordinate i of a single example's
    gradient, signal the norm :math:`\|g\|_1` of the step's gradient; both add up over parameter tensors before they are
    squared. The paper's estimator :math:`\sigma_i^2 = B/(R-1)\,(\overline{(g^j_i)^2} - g_i^2)` for R groups is the
    elementwise two-batch solution. Bias of the two sides:

    - Noise is unbiased for groups whose mean gradients are Gaussian, which holds unless groups are tiny: the square
      root of an unbiased variance is too small by the factor :func:`root_shrinkage`, which is divided out (the paper
      does not). A negative variance, which only rounding can cause, counts as zero.
    - Signal is biased upward: as in the paper it is the norm of a noisy gradient, whose entries have the mean of a
      folded normal, :math:`E|g_i| = s\sqrt{2/\pi}\,e^{-G_i^2/2s^2} + |G_i|\,\mathrm{erf}(|G_i|/s\sqrt2)` with
      :math:`s = \sigma_i/\sqrt B`. So the noise scale is biased downward, and **never above** :math:`\pi B/2`, until B
      is well above it; :func:`cbs.noise_scale.interval.correction` corrects part of this bias.
    """

    name = "l1"
    symbol = r"B_{\ell_1}"
    exponent = 2
    norms_suffice = False

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        squares = gradients.to(torch.promote_types(gradients.dtype, torch.float32)).square()
        return squares[0] if len(squares) == 1 else squares.sum(0)

    def read(self, small: Sequence[Tensor], big: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, Tensor]:
        signals = [at_big.sqrt().sum(dtype=torch.float64) for at_big in big]
        sides = zip(small, big, strict=True)
        variances = [solve_moments(one, sizes.small, other, sizes.big)[1] for one, other in sides]
        noises = [variance.clamp_min(0.0).sqrt().sum(dtype=torch.float64) for variance in variances]
        return torch.stack(signals), torch.stack(noises) / root_shrinkage(sizes.groups)


def root_shrinkage(groups: int) -> float:
    r"""Return the mean of a Gaussian sample's standard deviation over the true one; NaN for a single group.

    :math:`c_4(R) = \sqrt{2/(R-1)}\,\Gamma(R/2)/\Gamma((R-1)/2)`, from 0.798 for two groups up to 1.
    """
    if groups < 2:
        return math.nan
    return math.sqrt(2.0 / (groups - 1)) * math.exp(math.lgamma(groups / 2) - math.lgamma((groups - 1) / 2))
