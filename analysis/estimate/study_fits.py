"""From the studies of one optimizer to fitted curves, and what is believed of their exponents beforehand."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from analysis.arrays import Array
from analysis.config import AnalysisConfig
from analysis.estimate.definitions import Sample
from analysis.estimate.fitting import FEWEST_FREE, Fit, fit_curve, free_exponent, interval
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.exponent import ALONE, Belief, pooled
from analysis.estimate.fitting.seeds import FarSeed, far_seeds
from analysis.estimate.studies import Study


def tables(studies: Sequence[Study]) -> list[Trials]:
    """The trials of every study as :func:`analysis.estimate.fitting.fit_curve` takes them."""
    return [Trials(study.steps, study.bound, study.ran) for study in studies]


def fit_studies(
    studies: Sequence[Study], config: AnalysisConfig, belief: Belief = ALONE
) -> tuple[Fit | None, tuple[FarSeed, ...]]:
    """The curve through the studies, ``None`` when fewer than two reached the target; seeds far from their siblings.

    Seeds, and whole studies, that ran without reaching it enter as lower bounds. Far seeds are left out of the curve;
    every second resample is one with them, so the interval holds either way, unless with them it has no ends.
    """
    if sum(study.winner is not None for study in studies) < 2:
        return None, ()
    whole = tables(studies)
    sizes = [study.batch_size for study in studies]

    def fitted(tried: Sequence[Trials]) -> Fit:
        return fit_curve(
            sizes,
            tried,
            belief=belief,
            confidence=config.confidence,
            resamples=config.resamples,
            seed=config.seed,
        )

    far = far_seeds(whole)
    if not far:
        return fitted(whole), ()
    rest = list(whole)
    for seed in far:
        rest[seed.place] = rest[seed.place].without(seed.column)
    fit, other = fitted(rest), fitted(whole)
    if None in interval(other.resampled.critical, config.confidence):
        return fit, tuple(far)
    return _alternating(fit, other), tuple(far)


def _alternating(fit: Fit, other: Fit) -> Fit:
    """``fit`` with every second resample from ``other``."""

    def mixed(mine: Array, its: Array) -> Array:
        turn = (np.arange(len(mine)) % 2 == 0).reshape(-1, *[1] * (mine.ndim - 1))
        return np.where(turn, mine, its)

    return replace(
        fit,
        resampled_log_steps=mixed(fit.resampled_log_steps, other.resampled_log_steps),
        resampled=fit.resampled.mapped(mixed, other.resampled),
        resampled_hyperbola=fit.resampled_hyperbola.mapped(mixed, other.resampled_hyperbola),
    )


def beliefs(curves: Sequence[Sequence[Study]], scopes: Sequence[Hashable], config: AnalysisConfig) -> list[Belief]:
    """About the exponent of every curve, from the others of its scope, see
    :mod:`analysis.estimate.fitting.exponent`."""
    free = [
        free_exponent([study.batch_size for study in studies], tables(studies), confidence=config.confidence)
        if sum(study.winner is not None for study in studies) >= FEWEST_FREE
        else None
        for studies in curves
    ]
    found = [ALONE] * len(free)
    for scope in set(scopes):
        members = [index for index, other in enumerate(scopes) if other == scope]
        for index, belief in zip(members, pooled([free[index] for index in members]), strict=True):
            found[index] = belief
    return found


def sample(fit: Fit, target: float | None, *, resampled: bool = False) -> Sample:
    """What a definition sees of a fit: the measured curve, or its resamples."""
    if not resampled:
        return Sample(fit.batch_sizes, fit.log_steps[None], fit.estimate.one(), fit.hyperbola.one(), target)
    return Sample(fit.batch_sizes, fit.measured_resamples, fit.resampled, fit.resampled_hyperbola, target)
