r"""What runs of one seed share, estimated from the seeds themselves.

A seed does the same at neighbouring batch sizes, or at all of them, or nothing alike: it begins with the same weights
and sees the same examples, and how long that lasts differs between optimizers. With :math:`u_s(B)` the deviation of
seed s from the mean over seeds at a batch size,

.. math:: \operatorname{cov}(u_s(B), u_s(B')) = \sigma^2 \left[\rho\, (1 + r) e^{-r} + (1 - \rho) \delta_{BB'}\right],
    \qquad r = \sqrt 3\, |\ln B - \ln B'| / \ell

A share :math:`\rho` of the variance is a smooth function of :math:`\ln B` of length :math:`\ell`; the rest is each
run's own. What is common moves the level of a curve, and where the length is short its slope, too. Neither is known:
every pair on a grid counts by its likelihood of the contrasts between seeds (restricted maximum likelihood), so that
nothing is gained where seeds share nothing, and little where there are too few to tell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from analysis.estimate.best_rate import AtBest
from analysis.estimate.prior import matern
from analysis.quantities import Array

SHARES = (0.5, 0.7, 0.82, 0.9, 0.95, 0.98)  # Shares of the variance that are tried
# In e-folds of the batch size. None is much longer than a sweep: seeds that are 7 % apart may also slide by 2 % per
# e-fold, and how far the mean of three slides is in no data. Up to 6, twice as many answers at 2 % noise were wrong.
LENGTHS = (1.0, 2.0, 3.5)

_STRANGERS = 0.3  # Prior probability that the runs of a seed have nothing in common

# Probability that a run misses the target, or is past it, for another reason than its noise. Without it a bound that
# contradicts the other seeds would leave the few draws with the largest noise.
_STRAY = 0.02


@dataclass(frozen=True, kw_only=True)
class SeedModels:
    """What the conditions' means are under every model of what seeds share, ``J`` of them.

    Attributes:
        means: generalised least-squares means of the conditions, shape ``[J, M]``.
        covariances: of these means, in units of the variance of one run, shape ``[J, M, M]``.
        squares: sum of squares of the contrasts between seeds, shape ``[J]``; over ``freedom`` it is that variance.
        freedom: degrees of freedom of the contrasts; 0 with one seed.
        log_weights: ln of prior and determinants, shape ``[J]``.
        shares, lengths: the share of the variance that is common, and its length in ln B, shape ``[J]`` each.
        mixing: weights of the cells in the means, shape ``[J, M, n]``.
        place, labels: index of the condition and number of the seed of every cell, shape ``[n]`` each.
        log_sizes: ln of the batch sizes, shape ``[M]``.
    """

    means: Array
    covariances: Array
    squares: Array
    freedom: int
    log_weights: Array
    shares: Array
    lengths: Array
    mixing: Array
    place: np.ndarray
    labels: np.ndarray
    log_sizes: Array

    def errors(self, model: np.ndarray, key: int, rng: np.random.Generator) -> Array:
        """Return errors of the means by one model each, in units of the standard deviation of one run, ``[R, M]``.

        What the runs of a seed share is drawn from the ``key``, the seed and the batch size, so that two optimizers
        have it in common; the rest is their own.
        """
        share, length, count = self.shares[model], self.lengths[model], len(model)
        together = np.zeros((count, len(self.place)))
        for label in np.unique(self.labels) if share.any() else ():
            level = slope = np.zeros(count)
            before = -math.inf
            for cell in np.flatnonzero(self.labels == label):
                x = float(self.log_sizes[self.place[cell]])
                # the batch size in half octaves, as a seed of the draws is a whole number
                numbers = [key, int(label) % 2**32, round(2 * x / math.log(2)) % 2**16]
                new = np.random.default_rng(numbers).standard_normal((2, count))
                level, slope = _onward(level, slope, math.sqrt(3) * (x - before) / length, new)
                before, together[:, cell] = x, level
        cells = np.sqrt(share)[:, None] * together
        cells = cells + np.sqrt(1 - share)[:, None] * rng.standard_normal(together.shape)
        return np.asarray((self.mixing[model] @ cells[..., None])[..., 0])


def seed_models(log_sizes: Array, values: Array, labels: Sequence[int] | None = None) -> SeedModels:
    """Return the means of the conditions and their covariances under all models.

    Args:
        log_sizes: ln of the batch sizes, shape ``[M]``.
        values: objective of every seed at each, shape ``[M, N]``; NaN where there is none. Every row has a value.
        labels: numbers of the seeds, shape ``[N]``; by default 0 to N - 1.
    """
    place, seed = np.nonzero(np.isfinite(values))
    cells, count = values[place, seed], len(values)
    freedom = len(cells) - count
    several = np.bincount(seed).max(initial=1) > 1
    pairs = [(share, length) for share in SHARES for length in LENGTHS] if freedom and several else []
    shares, lengths = np.array([(0.0, 1.0), *pairs]).T
    means = np.eye(count)[place]
    both, root_logs = np.empty((len(shares), len(cells), count + 1)), np.zeros(len(shares))
    weights = np.empty((len(shares), count, len(cells)))
    roots: dict[bytes, Array] = {}  # seeds are independent: each is a block of its own, often one of few kinds
    for own in (np.flatnonzero(seed == label) for label in np.unique(seed)):
        kind = place[own].tobytes()
        if kind not in roots:
            alike = np.array([matern(log_sizes[place[own]], length) / 2 for length in lengths.tolist()])
            apart = (1 - shares)[:, None, None] * np.eye(len(own))
            roots[kind] = np.linalg.inv(np.linalg.cholesky(shares[:, None, None] * alike + apart))
        both[:, own] = roots[kind] @ np.column_stack([means[own], cells[own]])
        weights[..., own] = both[:, own, :count].swapaxes(1, 2) @ roots[kind]
        root_logs += np.log(np.diagonal(roots[kind], axis1=1, axis2=2)).sum(axis=1)
    columns, right = both[..., :count], both[..., count:]
    information = columns.swapaxes(1, 2) @ columns
    covariances = np.asarray(np.linalg.inv(information), dtype=float)
    fitted = covariances @ (columns.swapaxes(1, 2) @ right)
    squares = ((right - columns @ fitted) ** 2).sum(axis=(1, 2))
    logs = 0.5 * np.linalg.slogdet(information)[1] - root_logs
    prior = np.full(len(shares), (1 - _STRANGERS) / max(len(pairs), 1))
    prior[0] = _STRANGERS if pairs else 1.0
    return SeedModels(
        means=fitted[..., 0],
        covariances=covariances,
        squares=squares,
        freedom=freedom,
        log_weights=np.log(prior) - logs,
        shares=shares,
        lengths=lengths,
        mixing=covariances @ weights,
        place=place,
        labels=np.arange(values.shape[1])[seed] if labels is None else np.asarray(labels)[seed],
        log_sizes=log_sizes,
    )


def _onward(level: Array, slope: Array, step: Array, new: Array) -> tuple[Array, Array]:
    """Return the next level and slope of such a process, given those before a step of ``step``, all of variance 1.

    It is a Markov process of the two (Hartikainen and Särkkä, "Kalman filtering and smoothing solutions to temporal
    Gaussian process regression models", 2010, eq. 12), driven by two ``new`` standard normal numbers a step.
    """
    step = np.minimum(step, 1e3)  # the first step is infinite, and 0 x infinity no number
    fade = np.exp(-step)
    moved, turned = fade * ((1 + step) * level + step * slope), fade * ((1 - step) * slope - step * level)
    # what the step adds: 1 minus what is kept, and its Cholesky factor
    kept = fade**2
    first = np.maximum(1 - kept * ((1 + step) ** 2 + step**2), 0.0)
    cross = 2 * kept * step**2
    second = np.maximum(1 - kept * ((1 - step) ** 2 + step**2), 0.0)
    root = np.sqrt(first)
    tied = np.divide(cross, root, out=np.zeros_like(cross), where=root > 1e-9)  # a step of 0 adds nothing
    own = np.sqrt(np.maximum(second - tied**2, 0.0))
    return moved + root * new[0], turned + tied * new[0] + own * new[1]


def by_bounds(drawn: Array, own: Array, found: Sequence[AtBest]) -> Array:
    """Return the probability of all bounds of conditions by the objective there that was ``drawn`` ``[R, M]``, relative
    to the largest, shape ``[R]``, with the standard deviations ``own`` ``[R]`` of one run.

    Of a run that did not get to the target only :math:`y > b` is known, which has the probability
    :math:`\\Phi((f(x) - b)/\\sigma)`, unless something else kept it from there (:data:`_STRAY`). Seeds count as
    strangers here.
    """
    logs = np.zeros(len(drawn))
    for curve, each in zip(drawn.T, found, strict=True):
        for bounds, side in ((each.floors, 1.0), (each.ceilings, -1.0)):
            for bound in bounds[np.isfinite(bounds)]:
                logs += np.log(_STRAY + (1 - _STRAY) * ndtr(side * (curve - bound) / own))
    return np.exp(logs - logs.max())
