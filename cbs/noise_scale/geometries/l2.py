r"""The Euclidean geometry: :math:`B_{simple} = tr(\Sigma)/|G|^2` (McCandlish et al. 2018, equation 2.9)."""

from __future__ import annotations

import torch
from torch import Tensor

from cbs.noise_scale.geometries import GEOMETRIES, Geometry


@GEOMETRIES.register("l2")
class L2(Geometry):
    r"""The simple noise scale, which belongs to plain SGD and SGD with momentum.

    Signal and noise are the two-batch solution of :math:`T(g) = |g|^2`. They are unbiased estimates of :math:`|G|^2`
    and :math:`tr(\Sigma)` in every parameter tensor, for any group sizes and any distribution; either may be negative.
    At a batch of :math:`B_{simple}` examples the noise of a gradient is as large as the gradient (equation 2.10).
    """

    name = "l2"
    symbol = r"B_{\mathrm{simple}}"
    exponent = 1
    norms_suffice = True

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        dtype = torch.promote_types(gradients.dtype, torch.float32)
        return torch.linalg.vector_norm(gradients, dtype=dtype).square()
