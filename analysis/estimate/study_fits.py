"""From the studies of one optimizer to fitted curves, and the priors of their exponents.

Outlying seeds, which differ from the other runs of the same batch size by more than seeds do, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri, stdtr

from analysis.arrays import Array
from analysis.config import AnalysisConfig
from analysis.estimate.definitions import CurveSample
from analysis.estimate.fitting import Fit, fit_curve, free_exponent, interval
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.exponent import ALONE, Belief, pooled
from analysis.estimate.fitting.form_fits import FEWEST_FREE
from analysis.estimate.optima import gain, savings
from analysis.estimate.studies import Study

FEWEST_SIBLINGS = 2
LEAST_FACTOR = 1.5
"""A seed within this factor of the other seeds is never reported as far."""

_LEVEL = 0.01
"""Probability that any seed of a curve is reported as far if none is."""


class FarSeed(NamedTuple):
    """A seed that took ``factor`` times the geometric mean of the other seeds' steps to target."""

    batch_size: int
    seed: int
    factor: float


def far_seeds(tables: Sequence[Trials]) -> dict[int, tuple[int, float]]:
    """Find far seeds; return column and factor of the farthest one by the index of the batch size.

    A seed at the best learning rate is far if its log steps lie far from the mean of at least two others. The distance
    is compared by Student's t, at 1 % for all seeds of the curve together, with a variance that a few far seeds cannot
    raise: the median over batch sizes of each one's own variance divided by the median of its chi-squared distribution,
    at half the total degrees of freedom.
    """
    logs = [
        np.full(table.steps.shape[1], np.nan) if table.winner is None else np.log(table.steps[table.winner])
        for table in tables
    ]
    several = [np.isfinite(row).sum() for row in logs]
    medians = [
        float(np.nanvar(row, ddof=1)) / (chdtri(count - 1, 0.5) / (count - 1))
        for row, count in zip(logs, several, strict=True)
        if count > 1
    ]
    if not medians:
        return {}
    deviation = math.sqrt(float(np.median(medians)))
    freedom = max(1.0, sum(count - 1 for count in several if count > 1) / 2)
    # beside a far seed the others look far as well, so only the farthest one is kept
    farthest: dict[int, tuple[int, float]] = {}
    for place, row in enumerate(logs):
        for column in np.flatnonzero(np.isfinite(row)) if several[place] > FEWEST_SIBLINGS else ():
            siblings = np.delete(row, column)
            siblings = siblings[np.isfinite(siblings)]
            distance = float(row[column] - siblings.mean())
            unit = deviation * math.sqrt(1.0 + 1.0 / len(siblings))
            tail = float(stdtr(freedom, -abs(distance) / unit)) if unit > 0 else 0.0
            if abs(distance) > math.log(LEAST_FACTOR) and 2.0 * tail * sum(several) < _LEVEL:
                far_seed = int(column), math.exp(distance)
                farthest[place] = max(far_seed, farthest.get(place, far_seed), key=lambda seed: abs(math.log(seed[1])))
    return farthest


def tables(studies: Sequence[Study]) -> list[Trials]:
    """Return the trials of every study as :func:`analysis.estimate.fitting.fit_curve` takes them."""
    return [
        Trials(study.steps, study.bound, study.ran, gain(study.along_lr), savings(study.along_lr)[::2])
        for study in studies
    ]


def fit_studies(
    studies: Sequence[Study], config: AnalysisConfig, belief: Belief = ALONE
) -> tuple[Fit | None, tuple[FarSeed, ...], list[Trials]]:
    """Return the curve through the studies (``None`` if fewer than two reached the target), far seeds, and the trials
    without them.

    Seeds, and whole studies, that ran without reaching the target enter as lower bounds. Far seeds are left out of the
    curve, but every second resample includes them, so that the interval covers both cases, unless it has open ends with
    them.
    """
    if sum(study.winner is not None for study in studies) < 2:
        return None, (), []
    whole = tables(studies)
    sizes = [study.batch_size for study in studies]
    far = far_seeds(whole)
    if not far:
        return fit_curve(sizes, whole, belief, config), (), whole
    rest = [table.without(far[place][0]) if place in far else table for place, table in enumerate(whole)]
    fit, other = (fit_curve(sizes, tried, belief, config) for tried in (rest, whole))
    if None not in interval(other.resampled.critical, config.confidence):
        fit = _alternating(fit, other)
    named = [FarSeed(sizes[at], int(studies[at].seeds[column]), factor) for at, (column, factor) in far.items()]
    return fit, tuple(named), rest


def _alternating(fit: Fit, other: Fit) -> Fit:
    """Return ``fit`` with every second resample taken from ``other``."""

    def mixed(mine: Array, its: Array) -> Array:
        turn = (np.arange(len(mine)) % 2 == 0).reshape(-1, *[1] * (mine.ndim - 1))
        return np.where(turn, mine, its)

    return replace(
        fit,
        resampled_log_steps=mixed(fit.resampled_log_steps, other.resampled_log_steps),
        resampled=fit.resampled.mapped(mixed, other.resampled),
        resampled_power=fit.resampled_power.mapped(mixed, other.resampled_power),
        form_of=mixed(fit.form_of, other.form_of),
        resampled_hyperbola=fit.resampled_hyperbola.mapped(mixed, other.resampled_hyperbola),
    )


def beliefs(curves: Sequence[Sequence[Study]], scopes: Sequence[Hashable], config: AnalysisConfig) -> list[Belief]:
    """Return the prior of the exponent of every curve, from the other curves of its scope, see
    :mod:`analysis.estimate.fitting.exponent`."""
    free = [
        free_exponent([study.batch_size for study in studies], tables(studies), config)
        if sum(study.winner is not None for study in studies) >= FEWEST_FREE
        else None
        for studies in curves
    ]
    beliefs_of_studies = [ALONE] * len(free)
    for scope in set(scopes):
        members = [index for index, other in enumerate(scopes) if other == scope]
        for index, belief in zip(members, pooled([free[index] for index in members]), strict=True):
            beliefs_of_studies[index] = belief
    return beliefs_of_studies


def sample(fit: Fit, target: float | None, *, resampled: bool = False) -> CurveSample:
    """Return the input of a definition: the measured curve of a fit, or its resamples."""
    if not resampled:
        curve, hyperbola = (each.mapped(np.atleast_1d) for each in (fit.estimate, fit.hyperbola))
        return CurveSample(fit.batch_sizes, fit.log_steps[None], curve, hyperbola, target)
    return CurveSample(fit.batch_sizes, fit.measured_resamples, fit.resampled, fit.resampled_hyperbola, target)
