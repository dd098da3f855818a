r"""The noisy quadratic system: SGD on the first N coordinates of an infinite-dimensional quadratic.

Li and Maddison (2026), "Predicting Large Model Test Losses with a Noisy Quadratic System", arXiv:2605.09154,
assumptions 4.1 to 4.3 and the decomposition that follows, as implemented in their code. The loss is :math:`E + \frac12
\sum_n \lambda_n (w_n - w_n^*)^2` with curvatures :math:`\lambda_n = Q/n^q`, a start with :math:`E[\lambda_n (w_n -
w_n^*)^2] = P/n^p`, and noise of variance :math:`R/(n^r B)` on every gradient. Only :math:`n \le N` are trained, K steps
at the learning rate :math:`\gamma`. With :math:`x_n = \gamma Q/n^q`

.. math::

    L = E + \underbrace{\tfrac12 \sum_{n > N} P n^{-p}}_{\text{approximation}}
      + \underbrace{\tfrac12 \sum_{n \le N} P n^{-p} (1 - x_n)^{2K}}_{\text{bias}}
      + \underbrace{\tfrac12 \sum_{n \le N} \frac{\gamma R}{n^r B}
        \frac{1 - (1 - x_n)^{2K}}{2 - x_n}}_{\text{variance}}

The last sum is the paper's :math:`\frac12 \sum_n \lambda_n R n^{-r} \gamma^2/B \sum_{k<K} (1 - x_n)^{2k}` with the
geometric series summed. Losses therefore determine :math:`\gamma Q` and :math:`\gamma R` but not :math:`\gamma`, which
their code fixes at 1.999. Their further step, a learning rate that falls as the weights grow (for small batch sizes),
is left out.

Sums over n are exact up to :data:`EXACT`; beyond, they are an integral over ln n with the first term of the
Euler-Maclaurin formula.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from analysis.arrays import Array
from analysis.estimate.forms import FORMS, LossForm, LossRuns, Reference, Terms

EXACT = 32
"""Number of coordinates that are summed one by one."""

_NODES = 48
_NEAR_ONE = 1e-12


def terms(shape: Array, runs: LossRuns, reference: Reference, log_loss: Array) -> Terms:
    """Return f and g for ``ln(p - 1), ln(gamma Q), ln q, r``; sizes of the terms are the approximation error at the
    reference size for f, and gamma R over the reference batch size for g."""
    excess, first, q, r = np.exp(shape[:, 0]), shape[:, 1], np.exp(shape[:, 2]), shape[:, 3]
    rows, count = len(shape), len(runs.steps)
    f, g = np.empty((rows, count)), np.empty((rows, count))
    f_slopes, g_slopes = np.zeros((rows, count, 4)), np.zeros((rows, count, 4))
    middle = math.log(reference.parameters)
    for size in np.unique(runs.parameters):
        here = np.flatnonzero(runs.parameters == size)
        log_n, weights = nodes(float(size))
        x = np.exp(first[:, None] - q[:, None] * log_n)
        gap = np.where(np.abs(1.0 - x) > _NEAR_ONE, 1.0 - x, _NEAR_ONE)
        bias = weights * np.exp(-log_n + excess[:, None] * (middle - log_n) + shape[:, :1])
        noise = weights * np.exp(-r[:, None] * log_n) / (2.0 * (2.0 - x))
        by_p = bias * (1.0 + excess[:, None] * (middle - log_n))
        by_x, slowness = -2.0 * x / gap, -q[:, None] * log_n
        wider = noise * x / (2.0 - x)
        parts = np.stack(
            [bias, by_p, bias * by_x, bias * by_x * slowness,
             noise, noise * by_x, noise * by_x * slowness, wider, wider * slowness, -noise * log_n], axis=-1
        )  # fmt: skip
        counts, which = np.unique(runs.steps[here], return_inverse=True)
        # the remaining fraction of a coordinate's start after K steps, [R, K, J]
        left = np.exp(2.0 * counts[:, None] * np.log(np.abs(gap))[:, None])
        kept = np.moveaxis(left @ parts, -1, 0)[..., which]
        whole = np.moveaxis(parts.sum(axis=1), -1, 0)[..., None]
        tail, tail_slope = _tail(float(size), shape[:, 0], excess, middle)
        steps, share = runs.steps[here], reference.batch_size / runs.batch_size[here]
        f[:, here] = tail[:, None] + kept[0]
        f_slopes[:, here, 0] = tail_slope[:, None] + kept[1]
        f_slopes[:, here, 1], f_slopes[:, here, 2] = steps * kept[2], steps * kept[3]
        g[:, here] = share * (whole[4] - kept[4])
        g_slopes[:, here, 1] = share * (whole[7] - kept[7] - steps * kept[5])
        g_slopes[:, here, 2] = share * (whole[8] - kept[8] - steps * kept[6])
        g_slopes[:, here, 3] = share * (whole[9] - kept[9])
    return Terms(f, g, f_slopes, g_slopes)


@functools.lru_cache(maxsize=1024)
def nodes(size: float) -> tuple[Array, Array]:
    """Return ``ln n`` and weights whose sum over a smooth function equals that over n = 1 ... size, shape ``[J]``
    each."""
    first = np.arange(1.0, EXACT + 1.0)
    if size <= EXACT:
        return np.log(first), (first <= size).astype(float)
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    low, high = math.log(EXACT + 0.5), math.log(size + 0.5)
    log_n = low + 0.5 * (high - low) * (points + 1.0)
    ends = np.log([EXACT + 1.0, EXACT, size + 1.0, size])
    corrections = np.array([1.0, -1.0, -1.0, 1.0]) / 24.0
    inner = 0.5 * (high - low) * weights * np.exp(log_n)
    return np.concatenate([np.log(first), log_n, ends]), np.concatenate([np.ones(EXACT), inner, corrections])


def _tail(size: float, log_excess: Array, excess: Array, middle: float) -> tuple[Array, Array]:
    """Return the approximation error relative to that at the reference size, and its derivative in ``ln(p - 1)``."""
    log_end = math.log(size + 0.5)
    main = np.exp(excess * (middle - log_end))
    rest = -(1.0 + excess) / 24.0 * np.exp(log_excess - 2.0 * log_end) * main
    slope = excess * (middle - log_end)
    return main + rest, slope * main + rest * (slope + 1.0 + excess / (1.0 + excess))


def named(at: Array, reference: Reference) -> dict[str, Array]:
    """Return the parameters as in the paper."""
    excess = np.exp(at[:, 3])
    return {
        "E": at[:, 0],
        "P": 2.0 * np.exp(at[:, 1] + at[:, 3] + excess * math.log(reference.parameters)),
        "p": 1.0 + excess,
        "gamma Q": np.exp(at[:, 4]),
        "q": np.exp(at[:, 5]),
        "gamma R": np.exp(at[:, 2]) * reference.batch_size,
        "r": at[:, 6],
    }


FORMS.register("nqs")(
    LossForm(
        title="noisy quadratic system",
        formula="E + approximation(N) + bias(N, K) + variance(N, B, K)",
        symbols=("E", "P", "gamma R", "p", "gamma Q", "q", "r"),
        distinct={
            "parameters": (3, "E, P and p"),
            "batch_size": (2, "gamma R and r"),
            "steps": (3, "gamma Q and q"),
        },
        shapes=np.array(
            [
                [math.log(5e-3), math.log(1e-6), math.log(0.05), 0.0],
                [math.log(5.0), math.log(1.999), math.log(5.0), 8.0],
            ]
        ),
        terms=terms,
        named=named,
    )
)
