r"""The two equations behind every estimate (McCandlish et al. 2018, appendix A.1).

For a mean gradient :math:`g_B` over B independent examples and any quadratic statistic T, such as the squared norm, the
elementwise square or :math:`g g^\top`,

.. math:: E\,T(g_B) = T(G) + T(\Sigma)/B ,

where :math:`T(\Sigma)` is T averaged over the noise of a single example. Two batch sizes give two equations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Batch sizes behind one step, in examples.

    Attributes:
        small: effective size of the groups, their mean size.
        big: examples of the whole step, or their effective number over ranks of unequal batches.
        groups: number of groups.
        members: examples of what is counted as one in ``small`` and ``big``, as where several belong together.
    """

    small: float
    big: float
    groups: int
    members: int = 1

    def counted_in(self, members: int) -> Sizes:
        """The same sizes where so many examples count as one."""
        return Sizes(small=self.small / members, big=self.big / members, groups=self.groups, members=members)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """The moments of one step in one geometry, parameter tensor by parameter tensor.

    Both vectors add up over parameter tensors. NaN where the step had fewer than two groups, or was left out.

    Attributes:
        indices: which parameter tensors the entries belong to, as positions in :attr:`Probe.parameters`.
        signal: shape ``[indices]``; in the Euclidean geometry the unbiased estimate of :math:`|G|^2`.
        noise: shape ``[indices]``; in the Euclidean geometry the unbiased estimate of tr(Sigma).
        sizes: of the step.
        within: of ``l2`` where examples belong together, shape ``[indices]``: the trace of the covariance of the
            gradients of a group's members around that of their group.
    """

    indices: tuple[int, ...]
    signal: Tensor
    noise: Tensor
    sizes: Sizes
    within: Tensor | None = None


def solve_moments(small_statistic: Tensor, small: float, big_statistic: Tensor, big: float) -> tuple[Tensor, Tensor]:
    """Unbiased ``(T(G), T(Sigma))`` from a quadratic statistic at two batch sizes; NaN where the sizes are equal.

    Args:
        small_statistic: T at batch size ``small``, or a mean of several.
        small: smaller batch size, in examples.
        big_statistic: T at batch size ``big``; same shape.
        big: larger batch size, in examples.
    """
    if not big > small:
        undefined = torch.full_like(big_statistic, float("nan"))
        return undefined, undefined
    signal = (big * big_statistic - small * small_statistic) / (big - small)
    noise = (small_statistic - big_statistic) / (1.0 / small - 1.0 / big)
    return signal, noise
