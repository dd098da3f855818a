r"""The two equations behind every estimate (McCandlish et al. 2018, appendix A.1).

For a mean gradient :math:`g_B` over B independent examples and any quadratic statistic T, such as the squared norm, the
elementwise square or :math:`g g^\top`,

.. math:: E\,T(g_B) = T(G) + T(\Sigma)/B ,

where :math:`T(\Sigma)` is T averaged over the noise of a single example. Two batch sizes give two equations.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BETWEEN, WITHIN = "between", "within"
"""Names of the moments of ``l2`` whose noise is one part of that of groups of examples: the trace of the covariance of
groups' true gradients, and that of their members' gradients around the gradient of their group."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Batch sizes behind the two sides of one step, in examples.

    Attributes:
        small: effective number of examples in a group; the number itself where groups are equally large.
        big: number of examples in the whole step, or the effective number where ranks have unequal batches.
        groups: number of groups.
        members: number of examples that ``small`` and ``big`` count as one, where several belong together.
    """

    small: float
    big: float
    groups: int
    members: int = 1


@dataclass(frozen=True, kw_only=True)
class Moments:
    """The moments of one step in one geometry, for every parameter tensor.

    Both vectors may be summed over parameter tensors. NaN where the step had fewer than two groups.

    Attributes:
        indices: the parameter tensors of the entries, as positions in :attr:`Probe.parameters`.
        signal: shape ``[indices]``; in the Euclidean geometry the unbiased estimate of :math:`|G|^2`.
        noise: shape ``[indices]``; in the Euclidean geometry the unbiased estimate of tr(Sigma).
        sizes: batch sizes of the step.
    """

    indices: tuple[int, ...]
    signal: Tensor
    noise: Tensor
    sizes: Sizes


def solve_moments(small_statistic: Tensor, small: float, big_statistic: Tensor, big: float) -> tuple[Tensor, Tensor]:
    """Return unbiased estimates of ``(T(G), T(Sigma))`` from a quadratic T at two batch sizes; NaN for equal sizes.

    >>> signal, noise = solve_moments(torch.tensor(1.0 + 8.0 / 4), 4, torch.tensor(1.0 + 8.0 / 16), 16)
    >>> float(signal), float(noise)
    (1.0, 8.0)

    Args:
        small_statistic: T at batch size ``small``, or a mean of several such values.
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
