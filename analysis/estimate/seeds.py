r"""What runs of one seed share, estimated from the seeds themselves.

A seed does the same at neighbouring batch sizes, or at all of them, or nothing alike: it begins with the same weights
and sees the same examples, and how long that lasts differs between optimizers. With :math:`u_s(B)` the deviation of
seed s from the mean over seeds at a batch size,

.. math:: \operatorname{cov}(u_s(B), u_s(B')) = \sigma^2 \left[\rho\, e^{-|\ln B - \ln B'| / \ell} + (1 - \rho)
    \delta_{BB'}\right]

A share :math:`\rho` of the variance is a smooth function of :math:`\ln B` of length :math:`\ell` (infinite: a level
common to all batch sizes); the rest is each run's own. What is common moves the level of a curve and not its shape.
Neither is known: every pair on a grid counts by its likelihood of the contrasts between seeds (restricted maximum
likelihood), so that nothing is gained where seeds share nothing, and little where there are too few to tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array

SHARES = (0.3, 0.5, 0.7, 0.82, 0.9, 0.96)
LENGTHS = (1.5, 4.0, 12.0, 1e9)
"""In e-folds of the batch size."""

_STRANGERS = 0.3
"""Prior probability that the runs of a seed have nothing in common."""


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
            before, at = 0.0, -math.inf
            for cell in np.flatnonzero(self.labels == label):
                x = float(self.log_sizes[self.place[cell]])
                numbers = [key, int(label) % 2**32, round(2 * x / math.log(2)) % 2**16]
                kept = np.exp(-(x - at) / length)
                new = np.random.default_rng(numbers).standard_normal(count)
                before, at = kept * before + np.sqrt(1 - kept**2) * new, x
                together[:, cell] = before
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
    apart = np.abs(log_sizes[place][:, None] - log_sizes[place])
    same = seed[:, None] == seed
    together = shares[:, None, None] * same * np.exp(-apart / lengths[:, None, None])
    correlation = together + (1 - shares)[:, None, None] * np.eye(len(cells))
    root = np.linalg.inv(np.linalg.cholesky(correlation))
    means = np.eye(count)[place]
    both = root @ np.column_stack([means, cells])
    columns, right = both[..., :count], both[..., count:]
    information = columns.swapaxes(1, 2) @ columns
    covariances = np.asarray(np.linalg.inv(information), dtype=float)
    fitted = covariances @ (columns.swapaxes(1, 2) @ right)
    squares = ((right - columns @ fitted) ** 2).sum(axis=(1, 2))
    logs = -np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1) + 0.5 * np.linalg.slogdet(information)[1]
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
        mixing=covariances @ columns.swapaxes(1, 2) @ root,
        place=place,
        labels=np.arange(values.shape[1])[seed] if labels is None else np.asarray(labels)[seed],
        log_sizes=log_sizes,
    )
