"""The two-batch estimator of the gradient's moments (McCandlish et al. 2018, appendix A.1).

For a mean gradient g_B over B independent examples, E|g_B|^2 = |G|^2 + tr(Sigma)/B. Two batch sizes give two
equations, and solving them gives estimates of |G|^2 and tr(Sigma) that are unbiased, each on its own. Their ratio is
not: average the moments over steps first and divide last.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from cbs.noise_scale import PROBES


@PROBES.register("two_batch")
class TwoBatch:
    """Gradient moments from the micro-batches of a step and their mean.

    The small-batch side is the mean squared gradient norm over the micro-batches; for micro-batches of unequal size
    b_i its expectation is |G|^2 + tr(Sigma) mean(1/b_i), so the effective small batch size is the harmonic mean.

    Columns (one value per step):
        small_batch_size: harmonic mean of the micro-batch sizes, examples.
        small_grad_sq_norm: mean over micro-batches of the squared gradient norm.
        big_grad_sq_norm: squared norm of the whole batch's gradient.
        grad_sq_norm: unbiased estimate of |G|^2; may be negative.
        noise_trace: unbiased estimate of tr(Sigma), the trace of the per-example gradient covariance; may be
            negative.
    """

    columns = ("small_batch_size", "small_grad_sq_norm", "big_grad_sq_norm", "grad_sq_norm", "noise_trace")
    micro_batches = 2

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._sq_norms: list[Tensor] = []

    def micro_batch(self, gradients: Sequence[Tensor], examples: int) -> None:
        self._sizes.append(examples)
        self._sq_norms.append(get_total_norm(gradients).square())

    def step(self, gradients: Sequence[Tensor], examples: int) -> tuple[Tensor, ...]:
        sizes, sq_norms = self._sizes, self._sq_norms
        self._sizes, self._sq_norms = [], []
        big = get_total_norm(gradients).square().double()
        undefined = torch.full_like(big, float("nan"))
        if len(sizes) < 2:
            return undefined, undefined, big, undefined, undefined
        small = torch.stack(sq_norms).double().mean()
        small_size = len(sizes) / sum(1.0 / size for size in sizes)
        grad_sq_norm, noise_trace = solve_moments(small, small_size, big, examples)
        return torch.full_like(big, small_size), small, big, grad_sq_norm, noise_trace


def solve_moments(small_sq_norm: Tensor, small: float, big_sq_norm: Tensor, big: float) -> tuple[Tensor, Tensor]:
    """Unbiased ``(|G|^2, tr(Sigma))`` from squared gradient norms at two batch sizes.

    Args:
        small_sq_norm: squared norm (or a mean of several) at batch size ``small``.
        small: smaller batch size, in examples.
        big_sq_norm: squared norm at batch size ``big``.
        big: larger batch size, in examples.
    """
    grad_sq_norm = (big * big_sq_norm - small * small_sq_norm) / (big - small)
    noise_trace = (small_sq_norm - big_sq_norm) / (1.0 / small - 1.0 / big)
    return grad_sq_norm, noise_trace
