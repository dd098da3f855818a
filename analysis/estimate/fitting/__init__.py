"""The fitted curve of steps to target against batch size, and how well the data determine it.

The fit itself is :mod:`analysis.estimate.fitting.least_squares`, with every batch size weighted by its number of seeds;
seeds that did not reach the target enter as bounds, see :mod:`analysis.estimate.fitting.data`, and what is
believed of the exponent as :mod:`analysis.estimate.fitting.exponent` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri, stdtrit

from analysis.arrays import Array
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.curves import Curve
from analysis.estimate.fitting.bootstrap import Seeds, leftover, resampled_seeds, rescaled
from analysis.estimate.fitting.data import Data, Trials, gather
from analysis.estimate.fitting.exponent import ALONE, Belief
from analysis.estimate.fitting.least_squares import FREE, HYPERBOLA, Exponent, information
from analysis.estimate.fitting.luck import luck
from analysis.estimate.fitting.misfit import Misfit, grid_variance, lack_of_fit

_TINY = 1e-300
_ROUNDS = 3
ALIKE = 0.05
"""Probability of :class:`Misfit` below which residuals are one departure from the curve, not one at each batch size."""

FEWEST_FREE = 4
"""Batch sizes below which a free exponent leaves no residual."""


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
        seed_variance, seed_freedom: variance of the log steps of one seed, pooled over batch sizes, the choice of the
            learning rate included, and its degrees of freedom; 0 both with one seed.
        deviation, freedom: standard deviation of the log steps of one seed that the resamples were drawn with, which
            holds the residuals, too, and its degrees of freedom.
        misfit: how far the points lie off the curve; ``None`` where undefined.
        exponent: what was believed of it.
        hyperbola, resampled_hyperbola: with the exponent held at 1, scalars, and to resamples scattered around it.
    """

    batch_sizes: Array
    log_steps: Array
    estimate: Curve
    residual_rms: float
    resampled_log_steps: Array
    resampled: Curve
    interval_method: str
    weights: Array
    seed_variance: float
    seed_freedom: float
    deviation: float
    freedom: float
    misfit: Misfit | None
    exponent: Exponent
    data: Data = field(repr=False)
    hyperbola: Curve = field(repr=False)
    resampled_hyperbola: Curve = field(repr=False)

    @property
    def measured_resamples(self) -> Array:
        """``resampled_log_steps`` scattered around ``log_steps`` instead of the fitted curve, shape ``[R, M]``."""
        return self.resampled_log_steps + (self.log_steps - self.estimate.log_steps(self.batch_sizes))


def free_exponent(
    batch_sizes: Sequence[float], tables: Sequence[Trials], config: AnalysisConfig = DEFAULT
) -> Exponent | None:
    """The exponent that the data of one curve alone give, with its error; ``None`` below :data:`FEWEST_FREE`.

    The variance is that of the linearised fit, widened by Student's t where few data estimate the noise.
    """
    data, measured = gather(batch_sizes, tables)
    if int(data.reached.sum()) < FEWEST_FREE:
        return None
    seeds = resampled_seeds(measured, data.weights[data.reached], 200, np.random.default_rng(0))
    return _free(data.unbounded(), seeds, config.confidence)


def fit_curve(
    batch_sizes: Sequence[float], tables: Sequence[Trials], belief: Belief = ALONE, config: AnalysisConfig = DEFAULT
) -> Fit:
    r"""Fit the curve and resample it, the choice of the learning rate and the form of the curve included.

    Each resample draws seeds with replacement at every batch size, chooses the learning rate again, and takes the
    winner's mean log steps. With one to five seeds such a bootstrap is far too narrow on its own, so its deviations are

    1. centred, then rescaled to one standard deviation: the seed variance (pooled over batch sizes, inflated by
       n/(n-1)) together with the weighted mean squared residual of the fit, or the latter alone where it is larger, as
       it also holds what seeds cannot show (the spacing of the learning-rate grid, a curve of another form); times the
       share of each batch size, see :class:`analysis.estimate.fitting.bootstrap.Seeds`. Residuals that
       seeds do not explain (:data:`ALIKE`) do not cancel as noise does: they count as one, by their sum of squares;
    2. multiplied by the ratio of Student's t to the normal quantile at the pooled degrees of freedom;
    3. added to the fitted curve, in every second resample less what a finer learning rate could save
       (:func:`analysis.estimate.fitting.bootstrap.leftover`), and with what is luck in the choice of the learning rate
       (:func:`analysis.estimate.fitting.luck.luck`) in every second of either kind; refitted, each with a draw of what
       is believed of the exponent.

    Percentiles of the refits are the interval. With one seed per batch size the deviations are normal draws with the
    standard deviation of the residuals. A seed that did not reach the target is drawn from the fitted curve likewise,
    and is bounded in a resample where its draw is. The measured coverage is in ``docs/fits.md``. The estimate is
    that at the best learning rate of the grid, which is a little slower than the best of all where learning rates are
    few, and looks a little faster than it is where they are many and noisy; the intervals hold all of it.

    Batch sizes increase, and at least two of them have a table with a trial that reached the target.
    """
    data, measured = gather(batch_sizes, tables)
    here = data.reached
    count = int(here.sum())
    rng, resamples, confidence = np.random.default_rng(config.seed), config.resamples, config.confidence
    seeds = resampled_seeds(measured, data.weights[here], resamples, rng)
    alone = data.unbounded()
    if count >= FEWEST_FREE:
        belief = belief.giving_way(_free(alone, seeds, confidence))
    first = alone.fit(HYPERBOLA, 1.0).row(0)
    estimate, deviation, freedom = _fitted(data, belief.whole, seeds, first)
    hyperbola, around, known = _fitted(data, HYPERBOLA, seeds, first)
    fitted = estimate.log_steps(data.batch_sizes)
    log_steps = data.completed(fitted[None], deviation)[0]
    residuals = (log_steps - fitted)[here]
    left = freedom - seeds.freedom
    grid, weights = grid_variance(measured), data.all_weights[here]
    misfit = lack_of_fit(residuals, weights, left, seeds.variance, seeds.freedom, grid)
    alike = misfit is not None and misfit.probability < ALIKE and left > 1
    spread = deviation * math.sqrt(left) if alike else deviation
    complete, method = np.empty((0, count)), "none: the curve is exactly determined"
    resampled = resampled_hyperbola = Curve(*np.empty((4, 0)))

    def refits(curve: Curve, exponent: Exponent, deviation: float, scale: float) -> tuple[Curve, Array]:
        """Curves through resamples around ``curve``, and the resampled log steps ``[R, M]``."""
        fitted = curve.log_steps(data.batch_sizes)
        rows, hidden = np.where(here, fitted, 0.0) + scale * draws - saved, fitted[data.place] + scale * latent
        found = data.fit(exponent, max(deviation, _TINY), rows, hidden, scatter=scale, start=curve)
        return found, data.completed(found.log_steps(data.batch_sizes), scale, rows, hidden)[:, here]

    if count > 2:
        draws = np.zeros((resamples, len(fitted)))
        wanted = deviation * np.sqrt(seeds.shares / data.weights[here])
        draws[:, here] = rescaled(seeds.deviations, wanted, rng) / max(deviation, _TINY)
        believed = belief.draws(resamples, rng)
        saved = np.zeros_like(draws)
        saved[:, here] = leftover([table.gain for table in measured], resamples, rng)
        saved[np.ix_(np.arange(resamples) % 4 > 1, here)] -= luck(measured, seeds.variance, rng)
        latent = rng.standard_normal((resamples, len(data.bounds)))
        resampled, complete = refits(estimate, believed, deviation, widening(freedom, confidence) * spread)
        around *= widening(known, confidence)
        resampled_hyperbola, _ = refits(hyperbola, HYPERBOLA, around, around)
        method = f"bootstrap over {'seeds, learning rate chosen again' if seeds.freedom else 'residuals (one seed)'}"
        if alike:
            method += ", as far apart as all residuals together, which are larger than seeds explain"
    return Fit(
        batch_sizes=data.batch_sizes[here],
        log_steps=log_steps[here],
        estimate=estimate,
        residual_rms=math.sqrt(weights @ residuals**2 / weights.sum()),
        resampled_log_steps=complete,
        resampled=resampled,
        interval_method=method,
        weights=weights,
        seed_variance=seeds.variance,
        seed_freedom=seeds.freedom,
        deviation=spread,
        freedom=freedom,
        misfit=misfit,
        exponent=belief.whole,
        data=data,
        hyperbola=hyperbola,
        resampled_hyperbola=resampled_hyperbola,
    )


def widening(freedom: float, confidence: float) -> float:
    """Ratio of Student's t to the normal quantile: what a standard deviation that was estimated costs."""
    tail = 0.5 + confidence / 2
    return float(stdtrit(freedom, tail) / ndtri(tail))


def _free(alone: Data, seeds: Seeds, confidence: float) -> Exponent:
    found = alone.fit(FREE, 1.0).row(0)
    deviation, freedom = _deviation(alone, found, 0.0, seeds, len(alone.batch_sizes) - 3)
    deviation *= widening(freedom, confidence)
    spare = _known_of_exponent(alone.batch_sizes, found, alone.weights)
    return Exponent(math.log(float(found.exponent)), deviation**2 / spare if spare > _TINY else math.inf)


def _fitted(data: Data, exponent: Exponent, seeds: Seeds, curve: Curve) -> tuple[Curve, float, float]:
    """The most likely curve, the standard deviation of a seed around it, and its degrees of freedom.

    The exponent takes one degree of freedom of the residuals in so far as the data, not the belief, decide it. Each of
    the three needs the others, so they are found in turns. With three batch sizes the residuals are those of the
    hyperbola, as three parameters leave none; with two it is the curve. It starts at ``curve``, the hyperbola without
    the bounds.
    """
    count = int(data.reached.sum())
    alone = data.unbounded()
    freedom = float(count - 2)
    deviation, known = _deviation(alone, curve, 0.0, seeds, freedom)
    turns = 0 if exponent.held or count < 3 else 1 if count < FEWEST_FREE else _ROUNDS
    for part in (alone, data) if len(data.bounds) else (alone,):
        if exponent.held or count < 3:
            curve = part.fit(HYPERBOLA, max(deviation, _TINY), start=curve).row(0)
        for _ in range(turns):
            curve = part.fit(exponent, max(deviation, _TINY), start=curve).row(0)
            if count >= FEWEST_FREE:
                freedom = count - 2 - _share(part, curve, deviation, exponent)
                deviation, known = _deviation(part, curve, deviation, seeds, freedom)
    return curve, deviation, known


def _share(data: Data, curve: Curve, deviation: float, exponent: Exponent) -> float:
    """Share of what is known of the exponent that comes from the data, 0 to 1."""
    spare = _known_of_exponent(data.batch_sizes, curve, data.all_weights)
    before = deviation**2 / float(exponent.variance)
    return spare / (spare + before) if spare + before > 0 else 1.0


def _known_of_exponent(batch_sizes: Array, curve: Curve, weights: Array) -> float:
    """Information on the log exponent with ``ln B_crit`` profiled out, for seeds of unit standard deviation."""
    known = information(batch_sizes, curve, weights)
    return float(known[1, 1] - known[0, 1] ** 2 / known[0, 0]) if known[0, 0] > 0 else 0.0


def _deviation(data: Data, curve: Curve, deviation: float, seeds: Seeds, freedom: float) -> tuple[float, float]:
    """See :func:`pooled_deviation`."""
    fitted = curve.log_steps(data.batch_sizes)
    squares = float(data.all_weights @ (data.completed(fitted[None], deviation)[0] - fitted) ** 2)
    return pooled_deviation(squares, freedom, seeds.variance, seeds.freedom)


def pooled_deviation(squares: float, freedom: float, variance: float, known: float) -> tuple[float, float]:
    """Standard deviation of one seed's log steps, and its degrees of freedom.

    The squared residuals of a fit are pooled with the ``variance`` of seeds, ``known`` with so many degrees of freedom,
    unless they are larger than the seeds show: they also hold what seeds cannot show, and then they count alone.
    """
    if freedom <= 0:
        return math.sqrt(variance), known
    together = freedom + known
    return math.sqrt(max((squares + known * variance) / together, squares / freedom)), together


def interval(values: Array, confidence: float) -> tuple[float | None, float | None]:
    """Percentile interval of positive resampled values; an end that runs to 0 or infinity is ``None``."""
    if not len(values):
        return None, None
    low, high = np.quantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2], method="nearest")
    return (float(low) if 0 < low < np.inf else None, float(high) if np.isfinite(high) else None)
