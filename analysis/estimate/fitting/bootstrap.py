"""Resampling of seeds, with the learning rate chosen again in every resample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting.trials import Trials, stacked, winners
from cbs.lr_choice import best_lr_many

_FEW_SEEDS = 5
_ALIKE = 4.0
"""Degrees of freedom that the pooled variance counts for at every batch size: noise may grow or fall with it."""


def seed_deviations(
    tables: Sequence[Trials], reached: Array, resamples: int, rng: np.random.Generator
) -> tuple[Array, Array, float, int]:
    """How the winner's mean log steps scatter when seeds are drawn with replacement.

    Args:
        tables: one per batch size that reached the target.
        reached: seeds that reached the target at the winning learning rate, shape ``[M]``.
        resamples: number of resamples.
        rng: random numbers.

    Returns:
        Centred deviations ``[R, M]``; the variance of one seed's log steps at every batch size over the pooled one,
        drawn towards 1 as by :data:`_ALIKE` further degrees of freedom, shape ``[M]``; the pooled one, with what the
        choice of the learning rate adds to it; its degrees of freedom.
    """
    deviations = np.zeros((resamples, len(tables)))
    own, known = np.zeros(len(tables)), np.zeros(len(tables))
    draws: dict[int, np.ndarray] = {}
    several = [index for index, table in enumerate(tables) if table.steps.shape[1] > 1]
    for seeds, run in groupby(several, key=lambda index: tables[index].steps.shape[1]):
        indices = list(run)
        draws |= zip(indices, rng.integers(seeds, size=(len(indices), resamples, seeds)), strict=True)
    for together in _alike(draws):
        means = _winners_means([tables[index] for index in together], [draws[index] for index in together])
        hit = np.isfinite(means)
        centre = np.where(hit, means, 0.0).sum(axis=1, keepdims=True) / hit.sum(axis=1, keepdims=True)
        deviations[:, together] = np.where(hit, means - centre, 0.0).T
    variances = deviations.var(axis=0)
    for index, row in zip(draws, winners([tables[index] for index in draws]) if draws else (), strict=True):
        seeds = draws[index].shape[1]
        run_there = int(tables[index].ran[row].sum())
        if run_there < 2:
            continue
        # the bootstrap variance of a mean of n is (n - 1) / n of its unbiased estimate; times n it is that of one seed
        known[index] = run_there - 1
        own[index] = reached[index] * seeds * variances[index] / known[index]
    freedom = int(known.sum())
    pooled = float(own @ known) / freedom if freedom else 0.0
    shares = (_ALIKE * pooled + known * own) / (_ALIKE + known)
    return deviations, shares / pooled if pooled > 0 else np.ones(len(tables)), pooled, freedom


def _alike(draws: Mapping[int, np.ndarray]) -> list[list[int]]:
    """Batch sizes that are resampled in one go: those with the same few seeds; with many seeds each alone."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, drawn in draws.items():
        seeds = drawn.shape[1]
        groups.setdefault((seeds, index if seeds > _FEW_SEEDS else -1), []).append(index)
    return list(groups.values())


def _winners_means(tables: Sequence[Trials], draws: Sequence[np.ndarray]) -> Array:
    """Mean log steps of the winning learning rate, shape ``[tables, R]``, when the seeds are those of each row of
    ``draws``; NaN where none of them reached the target."""
    seeds = draws[0].shape[1]
    distinct, which = _distinct(np.stack(draws))
    steps, ran = (
        whole[:, :, distinct].transpose(0, 2, 1, 3).reshape(-1, whole.shape[1], seeds) for whole in stacked(tables)
    )
    logs = np.log(steps[np.arange(len(steps)), best_lr_many(steps, ran)])
    hits = np.isfinite(logs)
    count = hits.sum(axis=1)
    means = np.where(count > 0, np.where(hits, logs, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
    return np.take_along_axis(means.reshape(len(tables), -1), which, axis=1)


def _distinct(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ``draws`` ``[tables, R, seeds]`` that differ in more than their order, and which of them every row is,
    shape ``[tables, R]``; with three seeds there are 10. With many seeds hardly two rows are alike, and all are
    kept."""
    tables, count, seeds = draws.shape
    rows = draws.reshape(-1, seeds)
    if seeds > _FEW_SEEDS:
        return rows, np.arange(len(rows)).reshape(tables, count)
    # How often each seed is drawn, as the digits of one number. A bincount is faster than np.unique.
    digit = (seeds + 1) ** np.arange(seeds)
    codes = sum(digit[column] for column in rows.T)
    last = np.zeros(np.max(codes) + 1, dtype=int)
    last[codes] = np.arange(1, len(rows) + 1)
    found = np.flatnonzero(last)
    number = np.empty(len(last), dtype=int)
    number[found] = np.arange(len(found))
    return rows[last[found] - 1], number[codes].reshape(tables, count)


def rescaled(deviations: Array, wanted: Array, rng: np.random.Generator) -> Array:
    """``deviations`` ``[R, M]`` with the standard deviations ``wanted`` ``[M]``: shrunk where they are larger, filled
    up with normal draws where they are smaller."""
    present = deviations.std(axis=0)
    scale = np.minimum(1.0, wanted / np.where(present > 0, present, np.inf))
    missing = np.sqrt(np.maximum(wanted**2 - (scale * present) ** 2, 0.0))
    return np.asarray(deviations * scale + rng.standard_normal(deviations.shape) * missing)
