"""Resample seeds, choosing the learning rate again in every resample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from analysis.arrays import Array
from analysis.estimate.fitting.data import Trials
from cbs.trial.lr_choice import best_lr_many

_FEW_SEEDS = 8
_ALIKE = 4.0
"""Degrees of freedom with which the pooled variance counts at every batch size, because noise may depend on it."""


class Seeds(NamedTuple):
    """Scatter of the winner's mean log steps when seeds are drawn with replacement.

    Attributes:
        deviations: centred deviations, shape ``[R, M]``.
        shares: variance of one seed's log steps at every batch size relative to the pooled one, shrunk towards 1 as by
            :data:`_ALIKE` further degrees of freedom, shape ``[M]``.
        variance: pooled variance of one seed, including what the choice of the learning rate adds.
        freedom: degrees of freedom of ``variance``.
    """

    deviations: Array
    shares: Array
    variance: float
    freedom: int


def resampled_seeds(tables: Sequence[Trials], reached: Array, resamples: int, rng: np.random.Generator) -> Seeds:
    """Resample seeds from one table per batch size that reached the target.

    ``reached`` is the number of seeds that reached it at the winning learning rate, shape ``[M]``.
    """
    deviations = np.zeros((resamples, len(tables)))
    own, known = np.zeros(len(tables)), np.zeros(len(tables))
    several = [index for index, table in enumerate(tables) if table.steps.shape[1] > 1]
    for seeds, run in groupby(several, key=lambda index: tables[index].steps.shape[1]):
        indices = list(run)
        for index, drawn in zip(indices, rng.integers(seeds, size=(len(indices), resamples, seeds)), strict=True):
            table = tables[index]
            means = _winners_means(table, drawn)
            hit = np.isfinite(means)
            deviations[:, index] = np.where(hit, means - means[hit].mean(), 0.0)
            run_there = int(table.ran[table.winner].sum())
            if run_there < 2:
                continue
            # the bootstrap variance of a mean of n is (n - 1)/n of its unbiased estimate; times n it is that of one
            # seed
            known[index] = run_there - 1
            own[index] = reached[index] * seeds * deviations[:, index].var() / known[index]
    freedom = int(known.sum())
    pooled = float(own @ known) / freedom if freedom else 0.0
    shares = (_ALIKE * pooled + known * own) / (_ALIKE + known)
    return Seeds(deviations, shares / pooled if pooled > 0 else np.ones(len(tables)), pooled, freedom)


def _winners_means(table: Trials, draws: np.ndarray) -> Array:
    """Return the mean log steps of the winning learning rate, shape ``[R]``, for the seeds in each row of ``draws``;
    NaN where none of them reached the target."""
    # draws that differ only in order are the same (10 with three seeds); with many seeds hardly any two are the same
    seeds = draws.shape[1]
    codes = ((seeds + 1) ** draws).sum(axis=1) if seeds <= _FEW_SEEDS else np.arange(len(draws))
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    steps, ran = (whole[:, draws[first]].swapaxes(0, 1) for whole in (table.steps, table.ran))
    logs = np.log(steps[np.arange(len(steps)), best_lr_many(steps, ran)])
    hits = np.isfinite(logs)
    count = hits.sum(axis=1)
    means = np.where(count > 0, np.where(hits, logs, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
    return np.asarray(means[which])


def rescaled(deviations: Array, wanted: Array, rng: np.random.Generator) -> Array:
    """Give ``deviations`` ``[R, M]`` the standard deviations ``wanted`` ``[M]``: shrink larger ones, and add normal
    draws to smaller ones."""
    present = deviations.std(axis=0)
    scale = np.minimum(1.0, wanted / np.where(present > 0, present, np.inf))
    missing = np.sqrt(np.maximum(wanted**2 - (scale * present) ** 2, 0.0))
    return np.asarray(deviations * scale + rng.standard_normal(deviations.shape) * missing)


def leftover(gains: Sequence[float], resamples: int, rng: np.random.Generator) -> Array:
    """Return what a finer learning rate saves in log steps, at most ``gains``, shape ``[R, M]``; 0 in every second
    resample, so that the interval also covers the steps at the best learning rate of the grid.

    The optimum is equally likely anywhere around the winner, so the saving is proportional to the square of a uniform
    number. Batch sizes share half of the randomness, because one grid lies in a similar way around the optima of many.
    """
    most = np.asarray(gains, dtype=float)
    if not most.any():
        return np.zeros((resamples, len(most)))
    saved = most * alike_uniform((resamples, len(most)), rng) ** 2
    saved[::2] = 0.0
    return np.asarray(saved)


def alike_uniform(shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Return numbers uniform on (0, 1), shape ``[R, M]``, with half of the randomness shared within each row."""
    shared, own = rng.standard_normal((shape[0], 1)), rng.standard_normal(shape)
    return np.asarray(ndtr((shared + own) / math.sqrt(2.0)))
