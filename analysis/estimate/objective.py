r"""Use the loss at the end of runs of equal length as the objective, instead of the steps to target.

The code that chooses a learning rate and quantifies how far the choice can be trusted (:mod:`cbs.trial.lr_choice`,
:mod:`analysis.estimate.optima`, :mod:`analysis.estimate.fitting.bootstrap`, ...) works on the logarithms of steps. A
loss takes the place of such a logarithm: a study of losses y has :math:`e^{(y - y_0)/u}` as its steps, with the unit u
of :func:`unit_of`, so that nothing overflows, whatever the unit of the loss. Seed variances, winners and depths of
parabolas are linear in y, and come out in units of u.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.config import AnalysisConfig
from analysis.estimate.fitting.bootstrap import alike_uniform, resampled_seeds, rescaled
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.form_fits import widening
from analysis.estimate.fitting.winner_bias import winner_bias
from analysis.estimate.optima import savings
from analysis.estimate.studies import Study

_RANGE = 50.0
"""Largest difference of two losses in units of u."""

_TINY = 1e-9
"""Standard deviation below which there is no noise."""

_FEWEST = 4
"""Number of neighbouring batch sizes whose losses show, if there is one seed, their scatter around a smooth curve."""

_OVERLAP = 2.3
"""Third differences per degree of freedom: neighbouring ones share losses, with correlations of -.75, .3 and -.05."""


def unit_of(losses: Sequence[Array]) -> tuple[float, float]:
    """Return the smallest finite loss, and the unit in which losses above it are measured."""
    finite = np.concatenate([table[np.isfinite(table)] for table in losses])
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return low, (high - low) / _RANGE if high > low else 1.0


def as_study(study: Study, losses: Array, scale: tuple[float, float]) -> Study:
    """Return the study of one batch size with losses, shape ``[L, N]``, NaN where there is none, in place of its
    steps."""
    low, unit = scale
    nothing = np.full(losses.shape, np.nan)
    return Study(
        batch_size=study.batch_size,
        lrs=study.lrs,
        seeds=study.seeds,
        steps=np.exp((losses - low) / unit),
        status=study.status,
        bound=nothing,
        trials=study.trials,
        resolution=np.zeros(losses.shape),
        tuned=study.tuned,
        warmup=study.warmup,
    )


@dataclass(frozen=True, kw_only=True)
class BestLosses:
    """Losses at the best learning rate of each of ``M`` batch sizes.

    Attributes:
        losses: expected loss at the best learning rate, including learning rates between those that were run, shape
            ``[M]``.
        resampled: resampled losses, shape ``[R, M]``; no rows if the noise is unknown.
        deviation: standard deviation of the loss of one seed at every batch size, shape ``[M]``.
        freedom: degrees of freedom of the noise.
        seeds: number of seeds at the winning learning rate, shape ``[M]``.
        between: uncertainty of the saving by a learning rate between those that were run, shape ``[M]``.
        luck: amount by which the winner's mean is expected to be too low, shape ``[M]``.
        shared: correlation of the losses of one seed between batch sizes, see :func:`shared_by_seeds`.
    """

    losses: Array
    resampled: Array
    deviation: Array
    freedom: float
    seeds: Array
    between: Array
    luck: Array
    shared: float = 0.0

    def alone(self, confidence: float) -> Array:
        """Return resamples of every loss by itself, shape ``[R, M]``; ``resampled`` are for differences between batch
        sizes, in which what the losses of one seed share cancels.

        If a seed is lucky at all batch sizes alike, these say less about the noise than their number suggests: the
        variance pooled over M of them with several seeds has ``freedom`` / (1 + (M - 1) rho^2) degrees of freedom
        (Satterthwaite 1946), and at least those of one batch size.
        """
        several = int((self.seeds > 1).sum())
        if not len(self.resampled) or several < 2:
            return self.resampled
        least = min(float(self.seeds.max()) - 1.0, self.freedom)  # those of the batch size with the most seeds alone
        fewer = max(self.freedom / (1 + (several - 1) * self.shared**2), least)
        wider = widening(fewer, confidence) / widening(self.freedom, confidence)
        return self.losses + wider * (self.resampled - self.losses)


def best_losses(studies: Sequence[Study], scale: tuple[float, float], config: AnalysisConfig) -> BestLosses:
    """Return the losses at the best learning rates, and resamples of them; every study must have a winner.

    A loss is the winner's mean over seeds, plus the expected luck in the choice of the winner, minus the expected
    saving by a learning rate in between (:func:`analysis.estimate.optima.savings`). A resample draws seeds with
    replacement and chooses the learning rate again; deviations are rescaled to the variance of a seed pooled over batch
    sizes, and widened by Student's t, as for steps to target (:func:`analysis.estimate.fitting.fit_curve`). In
    resamples the luck is 0 or twice its expectation, and the saving varies over its possible range; where no saving is
    expected, it is 0 in every second resample. With one seed the noise is the scatter of losses around a smooth curve
    over batch sizes: four neighbours around a parabola through them.
    """
    low, unit = scale
    tables = [Trials(study.steps, study.bound, study.ran) for study in studies]
    least, likely, most = np.array([savings(study.along_lr) for study in studies]).T
    rng, resamples = np.random.default_rng(config.seed), config.resamples
    # a row of a table is a learning rate; every table here has a winner
    count = np.array([float(np.isfinite(table.steps[table.winner]).sum()) for table in tables])
    means = np.array([float(np.nanmean(np.log(table.steps[table.winner]))) for table in tables])
    seeds = resampled_seeds(tables, count, resamples, rng)
    variance, freedom, shares = seeds.variance, float(seeds.freedom), seeds.shares
    if not freedom:
        variance, freedom = _scatter(np.log([study.batch_size for study in studies]), means)
        variance *= float(np.mean(count))
    luck = winner_bias(tables, variance, rng)
    expected = means + luck - likely
    drawn = np.empty((0, len(tables)))
    if freedom > 0:
        deviation = math.sqrt(variance)
        wanted = np.sqrt(shares / count)
        drawn = rescaled(seeds.deviations / max(deviation, _TINY), wanted, rng)
        drawn *= deviation * widening(freedom, config.confidence)
        saved = least + (most - least) * alike_uniform(drawn.shape, rng)
        saved[::2, likely <= least] = 0.0
        drawn += means + luck - saved
        drawn += np.where(np.arange(resamples) % 4 > 1, 1.0, -1.0)[:, None] * luck
    return BestLosses(
        losses=low + unit * expected,
        resampled=low + unit * drawn,
        deviation=unit * np.sqrt(variance * shares),
        freedom=freedom,
        seeds=count,
        between=unit * (most - least),
        luck=unit * luck,
        shared=shared_by_seeds(studies),
    )


def winners_at_edges(studies: Sequence[Study]) -> np.ndarray:
    """Return a mask of the studies whose best learning rate is the lowest or the highest, shape ``[M]``.

    A single learning rate is both, unless no study has more than one, as with a rule, where none was chosen.
    """
    chosen = any(len(study.lrs) > 1 for study in studies)
    return np.array(
        [chosen and bool(np.isfinite(study.lrs).all()) and study.at_edge(study.winner or 0) for study in studies],
        dtype=bool,
    )


def shared_by_seeds(studies: Sequence[Study]) -> float:
    """Return the correlation of the losses of one seed at two batch sizes, 0 to 1, each at its best learning rate: runs
    of one seed begin alike and may see the same examples."""
    seeds = sorted({seed for study in studies for seed in study.seeds.tolist()})
    apart = np.full((len(studies), len(seeds)), np.nan)
    for row, study in zip(apart, studies, strict=True):
        logs = np.log(study.steps[study.winner or 0])
        row[np.searchsorted(seeds, study.seeds)] = np.where(np.isfinite(logs), logs - np.nanmean(logs), np.nan)
    known = np.isfinite(apart)
    apart = np.where(known, apart, 0.0)
    together = known.astype(float) @ known.T - 1.0
    pairs = np.where(together > 0, apart @ apart.T / np.maximum(together, 1.0), np.nan)
    own, others = np.diag(pairs), pairs[~np.eye(len(pairs), dtype=bool)]
    if not np.isfinite(own).any() or not np.isfinite(others).any() or not np.nanmean(own) > 0:
        return 0.0
    return float(np.clip(np.nanmean(others) / np.nanmean(own), 0.0, 1.0))


def _scatter(log_sizes: Array, means: Array) -> tuple[float, float]:
    """Return the variance of means around a smooth curve over batch sizes, and its degrees of freedom (0 if there are
    too few).

    A combination of four neighbours that vanishes for every parabola contains only the noise of the four.
    """
    squares = []
    for start in range(len(means) - _FEWEST + 1):
        x = log_sizes[start : start + _FEWEST] - log_sizes[start]
        weights = np.linalg.svd(np.vander(x, 3).T)[2][-1]
        squares.append(float(weights @ means[start : start + _FEWEST]) ** 2)
    return (float(np.mean(squares)), max(1.0, len(squares) / _OVERLAP)) if squares else (0.0, 0.0)
