"""The fitted curve of steps to target against batch size, and how well the data determine it.

The fit itself is :mod:`analysis.estimate.fitting.hyperbola`, with every batch size weighted by its number of
seeds; seeds that did not reach the target enter as bounds, see :mod:`analysis.estimate.fitting.censoring`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from analysis.arrays import Array
from analysis.estimate.fitting.bootstrap import rescaled, seed_deviations, stacked
from analysis.estimate.fitting.censoring import Bounds, collect, completed, fit_censored, observed
from analysis.estimate.fitting.hyperbola import REACH, Hyperbola, fit_hyperbola, predicted
from cbs.lr_choice import best_lr_many

__all__ = ["REACH", "Fit", "Hyperbola", "fit_curve", "fit_hyperbola", "interval", "predicted"]

_TINY = 1e-300
_NO_BOUNDS = Bounds(np.empty(0, dtype=int), np.empty(0))


@dataclass(frozen=True)
class Data:
    """What a curve is fitted to.

    Attributes:
        batch_sizes: shape ``[M]``, increasing, with those where only bounds are known.
        log_steps: mean over the seeds that reached the target, shape ``[M]``; 0 where none did.
        weights: number of these seeds, shape ``[M]``.
        bounds: the seeds that did not; ``place`` counts in ``batch_sizes``.
    """

    batch_sizes: Array
    log_steps: Array
    weights: Array
    bounds: Bounds = _NO_BOUNDS

    @property
    def all_weights(self) -> Array:
        """Number of all seeds, those that did not reach the target included, shape ``[M]``."""
        return self.weights + np.bincount(self.bounds.place, minlength=len(self.weights))

    def completed(
        self, curve: Array, deviation: float, rows: Array | None = None, latent: Array | None = None
    ) -> Array:
        """Log steps with the expectation of every bounded seed averaged in, shape ``[R, M]``; ``rows`` and ``latent``
        as :func:`fit_data` takes them."""
        rows = self.log_steps[None] if rows is None else rows
        return completed(curve, rows, self.weights, self.bounds, deviation, latent)

    @property
    def reached(self) -> np.ndarray:
        """Which batch sizes reached the target, shape ``[M]``."""
        return np.asarray(self.weights > 0)

    def without(self, place: int) -> Data:
        """All but one batch size."""
        kept = np.arange(len(self.batch_sizes)) != place
        bounds = self.bounds.place != place
        moved = self.bounds.place[bounds] - (self.bounds.place[bounds] > place)
        return Data(
            self.batch_sizes[kept],
            self.log_steps[kept],
            self.weights[kept],
            Bounds(moved, self.bounds.log_steps[bounds]),
        )


@dataclass(frozen=True)
class Fit:
    """A fitted curve and its bootstrap.

    Attributes:
        batch_sizes: those that reached the target, shape ``[M]``, increasing.
        log_steps: natural log of the steps to target, shape ``[M]``: mean over the seeds, those that did not reach the
            target at their expectation.
        estimate: the most likely curve, scalars.
        residual_rms: root of the weighted mean squared residual of ``log_steps``.
        resampled_log_steps: shape ``[R, M]``; no rows when the interval is undefined.
        resampled: the fit to each row of ``resampled_log_steps``, shape ``[R]``.
        interval_method: how the resamples were made, in words.
        weights: number of seeds behind ``log_steps``, shape ``[M]``.
        seed_variance: variance of the log steps of one seed, pooled over batch sizes, the choice of the learning rate
            included; 0 where ``seed_freedom`` is.
        seed_freedom: its degrees of freedom.
        deviation: standard deviation of the log steps of one seed that the resamples were drawn with; holds the
            residuals, too.
        data: what was fitted, for other curves through the same data.
        draws: what the resamples were made of, in units of ``deviation`` and before the t-quantile, so that another
            curve can be resampled alike: of the means, shape ``[R, len(data.batch_sizes)]``.
        latent_draws: likewise of the bounded seeds, shape ``[R, J]``.
    """

    batch_sizes: Array
    log_steps: Array
    estimate: Hyperbola
    residual_rms: float
    resampled_log_steps: Array
    resampled: Hyperbola
    interval_method: str
    weights: Array = field(default_factory=lambda: np.empty(0))
    seed_variance: float = 0.0
    seed_freedom: int = 0
    deviation: float = 0.0
    data: Data | None = field(default=None, repr=False)
    draws: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    latent_draws: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)

    @property
    def measured_resamples(self) -> Array:
        """``resampled_log_steps`` scattered around ``log_steps`` instead of the fitted curve, shape ``[R, M]``."""
        return self.resampled_log_steps + (self.log_steps - predicted(self.batch_sizes, self.estimate))


def fit_data(data: Data, deviation: float, rows: Array | None = None, latent: Array | None = None) -> Hyperbola:
    """The most likely hyperbola, shape ``[R]``.

    Args:
        data: what was measured.
        deviation: standard deviation of the log steps of one seed; used where there are bounds only.
        rows: log steps of resamples in place of the measured ones, shape ``[R, M]``.
        latent: of the bounded seeds, likewise, see :func:`analysis.estimate.fitting.censoring.fit_censored`.
    """
    sizes, reach = data.batch_sizes, data.batch_sizes[data.reached]
    return fit_censored(
        lambda y, w, start: fit_hyperbola(sizes, y, w, reach=reach, start=start),
        lambda hyperbola: predicted(sizes, hyperbola),
        data.log_steps[None] if rows is None else rows,
        data.weights,
        data.bounds,
        deviation,
        latent,
    )


def fit_curve(
    batch_sizes: Sequence[int],
    tables: Sequence[Array],
    *,
    bounds: Sequence[Array] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Fit:
    r"""Fit the curve and resample it, the choice of the learning rate included.

    Each resample draws seeds with replacement at every batch size, chooses the learning rate again, and takes the
    winner's mean log steps. With one to five seeds such a bootstrap is far too narrow on its own, so its deviations are

    1. centred, then rescaled to one pooled standard deviation per batch size: the larger of the seed variance (pooled
       over batch sizes, inflated by n/(n-1)) and the weighted mean squared residual of the fit, which also holds what
       seeds cannot show (the spacing of the learning-rate grid, a curve that is not the hyperbola);
    2. multiplied by the ratio of Student's t to the normal quantile at the pooled degrees of freedom;
    3. added to the fitted curve, and refitted.

    Percentiles of the refits are the interval. With one seed per batch size the deviations are normal draws with the
    standard deviation of the residuals. A seed that did not reach the target is drawn from the fitted curve likewise,
    and is bounded in a resample where its draw is. The measured coverage is in ``docs/fits.md``. The asymptotes are
    those at the best learning rate of the grid, which is a little slower than the best of all.

    Args:
        batch_sizes: shape ``[M]``, increasing; at least two with a finite entry in their table.
        tables: for every batch size steps to target of shape ``[learning rates, seeds]``, NaN where not reached.
        bounds: steps run without reaching the target, likewise, NaN where that means nothing; absent: not known.
        confidence: level the t-quantile is taken at.
        resamples: number of resamples.
        seed: of the resampling.
    """
    data, measured = gather(batch_sizes, tables, bounds)
    here = data.reached
    sizes, count = data.batch_sizes[here], int(here.sum())
    rng = np.random.default_rng(seed)
    deviations, seed_variance, freedom = seed_deviations(measured, data.weights[here], resamples, rng)
    alone = Data(sizes, data.log_steps[here], data.weights[here])
    found = fit_data(alone, 0.0)
    deviation = _deviation(alone, found, 0.0, seed_variance)
    if len(data.bounds):
        found = fit_data(data, deviation)
    estimate = Hyperbola(found.min_steps[0], found.min_examples[0])
    fitted = predicted(data.batch_sizes, estimate)
    log_steps = data.completed(fitted[None], deviation)[0]
    residuals = (log_steps - fitted)[here]
    if len(data.bounds):
        deviation = _deviation(data, found, deviation, seed_variance)
    rms = math.sqrt(data.all_weights[here] @ residuals**2 / data.all_weights[here].sum())
    common: dict[str, Any] = {
        "batch_sizes": sizes,
        "log_steps": log_steps[here],
        "estimate": estimate,
        "residual_rms": rms,
        "weights": data.all_weights[here],
        "seed_variance": seed_variance,
        "seed_freedom": freedom,
        "deviation": deviation,
        "data": data,
    }
    if count < 3:
        none = np.empty((0, count))
        return Fit(
            **common,
            resampled_log_steps=none,
            resampled=Hyperbola(none[:, 0], none[:, 0]),
            interval_method="none: the curve is exactly determined",
        )
    draws = np.zeros((resamples, len(fitted)))
    draws[:, here] = rescaled(deviations, deviation / np.sqrt(data.weights[here]), rng) / max(deviation, _TINY)
    latent_draws = rng.standard_normal((resamples, len(data.bounds)))
    scale = widening(count - 2 + freedom, confidence) * deviation
    rows, latent = np.where(here, fitted, 0.0) + scale * draws, fitted[data.bounds.place] + scale * latent_draws
    resampled = fit_data(data, scale, rows, latent)
    complete = data.completed(predicted(data.batch_sizes, resampled), scale, rows, latent)
    return Fit(
        **common,
        resampled_log_steps=complete[:, here],
        resampled=resampled,
        interval_method="bootstrap over seeds, learning rate chosen again"
        if freedom
        else "bootstrap over residuals (one seed)",
        draws=draws,
        latent_draws=latent_draws,
    )


def gather(
    batch_sizes: Sequence[int], tables: Sequence[Array], bounds: Sequence[Array] | None
) -> tuple[Data, list[Array]]:
    """What :func:`fit_curve` fits, and the tables of the batch sizes that reached the target."""
    if bounds is None:
        bounds = [np.full(table.shape, np.nan) for table in tables]
    winners = [None if row < 0 else int(row) for row in best_lr_many(stacked(tables))]
    seen = [observed(*each) for each in zip(tables, bounds, winners, strict=True)]
    used = [index for index, (logs, limits) in enumerate(seen) if len(logs) or len(limits)]
    data = Data(
        np.asarray(batch_sizes, dtype=float)[used],
        np.array([seen[index][0].mean() if len(seen[index][0]) else 0.0 for index in used]),
        np.array([len(seen[index][0]) for index in used], dtype=float),
        collect([seen[index][1] for index in used]),
    )
    return data, [tables[index] for index in used if len(seen[index][0])]


def widening(freedom: int, confidence: float) -> float:
    """Ratio of Student's t to the normal quantile: what a standard deviation that was estimated costs."""
    tail = 0.5 + confidence / 2
    return float(stdtrit(freedom, tail) / ndtri(tail))


def _deviation(data: Data, found: Hyperbola, deviation: float, seed_variance: float) -> float:
    """Standard deviation of one seed's log steps: the larger of what seeds and what the residuals of a fit show."""
    freedom = int(data.reached.sum()) - 2
    if freedom < 1:
        return math.sqrt(seed_variance)
    curve = predicted(data.batch_sizes, found)
    residuals = data.completed(curve, deviation)[0] - curve[0]
    return math.sqrt(max(seed_variance, data.all_weights @ residuals**2 / freedom))


def interval(values: Array, confidence: float) -> tuple[float | None, float | None]:
    """Percentile interval of positive resampled values; an end that runs to 0 or infinity is ``None``."""
    if not len(values):
        return None, None
    low, high = np.quantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2], method="nearest")
    return (float(low) if 0 < low < np.inf else None, float(high) if np.isfinite(high) else None)
