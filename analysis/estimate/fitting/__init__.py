"""Fit the curve of steps to target against batch size, and measure how well the data determine it.

The fit itself is :mod:`analysis.estimate.fitting.least_squares`, with every batch size weighted by its number of seeds.
Seeds that did not reach the target enter as bounds, see :mod:`analysis.estimate.fitting.data`. The prior of the
exponent is described in :mod:`analysis.estimate.fitting.exponent`, that of the form of the curve in
:mod:`analysis.estimate.fitting.forms`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.arrays import Array
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.curves import StepsCurve
from analysis.estimate.fitting.bend import Bend, bend
from analysis.estimate.fitting.bootstrap import leftover, resampled_seeds, rescaled
from analysis.estimate.fitting.data import Data, Trials, gather
from analysis.estimate.fitting.exponent import ALONE, Belief
from analysis.estimate.fitting.form_fits import FEWEST_FREE, TINY, FormFit, fit_forms, fitted, free, widening
from analysis.estimate.fitting.least_squares import HYPERBOLA, Exponent
from analysis.estimate.fitting.misfit import Misfit, between_rates, grid_variance
from analysis.estimate.fitting.winner_bias import winner_bias


@dataclass(frozen=True)
class Fit:
    """A fitted curve and its bootstrap.

    Attributes:
        batch_sizes: batch sizes that reached the target, shape ``[M]``, increasing.
        log_steps: natural log of the steps to target, shape ``[M]``: mean over the seeds, with the expected value in
            place of seeds that did not reach the target.
        estimate: the most likely curve, scalars, of the form with the largest share.
        residual_rms: root of the weighted mean squared residual of ``log_steps``.
        resampled_log_steps: resampled log steps, shape ``[R, M]``; no rows if the interval is undefined.
        resampled: the fit to each row of ``resampled_log_steps``, of one of the forms, shape ``[R]``.
        form_of: index in ``forms`` of each of these fits, shape ``[R]``.
        forms: the fit of every form; the data and the priors of the forms determine their shares of the resamples.
        power, resampled_power: the power law, scalars, and its fits to as many resamples.
        interval_method: how the resamples were made, in words.
        weights: number of seeds behind ``log_steps``, shape ``[M]``.
        seed_variance, seed_freedom: variance of the log steps of one seed, pooled over batch sizes and including the
            choice of the learning rate, and its degrees of freedom; both 0 if there is one seed.
        deviation, freedom: standard deviation of the log steps of one seed with which the resamples were drawn, which
            also includes the residuals, and its degrees of freedom.
        misfit: how far the points lie off the curve; ``None`` if undefined.
        bend: how the exponent changes towards large batch sizes; ``None`` if undefined.
        exponent: prior of the exponent.
        free_exponent: exponent from the data alone; ``None`` below :data:`FEWEST_FREE` batch sizes.
        data: the data that the curve was fitted to.
        hyperbola, resampled_hyperbola: the curve with the exponent fixed at 1, scalars, and its fits to resamples
            scattered around it.
    """

    batch_sizes: Array
    log_steps: Array
    estimate: StepsCurve
    residual_rms: float
    resampled_log_steps: Array
    resampled: StepsCurve
    form_of: Array
    forms: Sequence[FormFit]
    power: StepsCurve
    resampled_power: StepsCurve
    interval_method: str
    weights: Array
    seed_variance: float
    seed_freedom: float
    deviation: float
    freedom: float
    misfit: Misfit | None
    bend: Bend | None
    exponent: Exponent
    free_exponent: Exponent | None
    data: Data = field(repr=False)
    hyperbola: StepsCurve = field(repr=False)
    resampled_hyperbola: StepsCurve = field(repr=False)

    @property
    def measured_resamples(self) -> Array:
        """``resampled_log_steps`` scattered around ``log_steps`` instead of the fitted curve, shape ``[R, M]``."""
        return self.resampled_log_steps + (self.log_steps - self.estimate.log_steps(self.batch_sizes))


def free_exponent(
    batch_sizes: Sequence[float], tables: Sequence[Trials], config: AnalysisConfig = DEFAULT
) -> Exponent | None:
    """Estimate the exponent of one curve from its data alone, with its error; ``None`` below :data:`FEWEST_FREE`.

    The variance is that of the linearised fit, widened by Student's t if few data estimate the noise.
    """
    data, measured = gather(batch_sizes, tables)
    if int(data.reached.sum()) < FEWEST_FREE:
        return None
    seeds = resampled_seeds(measured, data.weights[data.reached], 200, np.random.default_rng(0))
    return free(data.unbounded(), seeds, config.confidence)


def fit_curve(
    batch_sizes: Sequence[float], tables: Sequence[Trials], belief: Belief = ALONE, config: AnalysisConfig = DEFAULT
) -> Fit:
    r"""Fit the curve and resample it, including the choice of the learning rate and of the form of the curve.

    Each resample draws seeds with replacement at every batch size, chooses the learning rate again, and takes the mean
    log steps of the winner. With one to five seeds such a bootstrap alone is far too narrow, so its deviations are

    1. centred, then rescaled to a common standard deviation. Its square is the seed variance (pooled over batch sizes,
    inflated by n/(n-1)) pooled with the weighted mean squared residual of the fit, or the latter alone if it is larger,
    because it also contains what seeds cannot show (the spacing of the learning-rate grid, another form of the curve).
    It is multiplied by the share of each batch size, see :class:`analysis.estimate.fitting.bootstrap.Seeds`. Residuals
    that seeds do not explain (:data:`analysis.estimate.fitting.form_fits.ALIKE`) do not average out as noise does: they
    count as a single departure, with the sum of their squares;
    2. multiplied by the ratio of the quantiles of Student's t and the normal distribution at the pooled degrees of
    freedom;
    3. added to the fitted curve of a form (:mod:`analysis.estimate.fitting.forms`; each form gets its share of the
    resamples). In every second resample, what a finer learning rate could save is subtracted
    (:func:`analysis.estimate.fitting.bootstrap.leftover`), and in half of both kinds the luck in the choice of the
    learning rate is corrected (:func:`analysis.estimate.fitting.winner_bias.winner_bias`). Each resample is refitted by
    the same form and with a draw of the prior of the exponent.

    The interval is formed by percentiles of the refits. With one seed per batch size the deviations are normal draws
    with the standard deviation of the residuals. A seed that did not reach the target is drawn from the fitted curve in
    the same way, and is a bound in a resample if its draw is beyond its bound. The measured coverage is in
    ``docs/evidence.md``. The estimate is for the best learning rate of the grid. It is slightly slower than the best
    possible one if learning rates are few, and looks slightly faster than it is if they are many and noisy; the
    intervals cover both.

    Batch sizes have to increase, and at least two of them need a trial that reached the target.
    """
    data, measured = gather(batch_sizes, tables)
    here = data.reached
    count = int(here.sum())
    rng, resamples, confidence = np.random.default_rng(config.seed), config.resamples, config.confidence
    seeds = resampled_seeds(measured, data.weights[here], resamples, rng)
    first, weights = data.unbounded().fit(HYPERBOLA, 1.0).row(0), data.all_weights[here]
    grid = grid_variance(measured)
    forms = fit_forms(data, first, belief, seeds, grid, confidence)
    power, best = forms[0], max(forms, key=lambda each: each.share)
    hyperbola, around, known = fitted(data, HYPERBOLA, seeds, first)
    log_steps = data.completed(best.estimate.log_steps(data.batch_sizes)[None], best.deviation)[0]
    finer, unknown = between_rates(measured, grid)
    complete, method = np.empty((0, count)), "none: the curve is exactly determined"
    none = StepsCurve(*np.empty((4, 0)))
    resampled = resampled_power = resampled_hyperbola = none
    form_of = np.empty(0, dtype=int)

    def refits(
        curve: StepsCurve, exponent: Exponent, deviation: float, scale: float, rows: np.ndarray
    ) -> tuple[StepsCurve, Array]:
        """Return curves fitted to resamples around ``curve``, and the resampled log steps ``[R, M]``."""
        fitted = curve.log_steps(data.batch_sizes)
        logs = np.where(here, fitted, 0.0) + scale * draws[rows] - saved[rows]
        hidden = fitted[data.place] + scale * latent[rows]
        knee = float(curve.knee)
        fit = data.fit(exponent, max(deviation, TINY), logs, hidden, scatter=scale, start=curve, knee=knee)
        return fit, data.completed(fit.log_steps(data.batch_sizes), scale, logs, hidden)[:, here]

    def of_form(form: FormFit, rows: np.ndarray) -> tuple[StepsCurve, Array]:
        believed = form.belief.draws(resamples, np.random.default_rng([config.seed, 1])).at(rows)
        return refits(form.estimate, believed, form.deviation, widening(form.freedom, confidence) * form.spread, rows)

    if count > 2:
        draws = np.zeros((resamples, len(here)))
        wanted = np.sqrt(seeds.shares / data.weights[here])
        draws[:, here] = rescaled(seeds.deviations / max(best.deviation, TINY), wanted, rng)
        saved = np.zeros_like(draws)
        saved[:, here] = leftover([table.gain for table in measured], resamples, rng)
        saved[np.ix_(np.arange(resamples) % 4 > 1, here)] -= winner_bias(measured, seeds.variance, rng)
        latent = rng.standard_normal((resamples, len(data.bounds)))
        every = np.arange(resamples)
        resampled, complete = of_form(best, every)
        resampled_power = resampled if best is power else of_form(power, every)[0]
        around *= widening(known, confidence)
        resampled_hyperbola, _ = refits(hyperbola, HYPERBOLA, around, around, every)
        turns = np.random.default_rng([config.seed, 2]).permutation(every + 0.5) / resamples
        form_of = np.searchsorted(np.cumsum([form.share for form in forms])[:-1], turns)
        for place, form in enumerate(forms):
            rows = np.flatnonzero(form_of == place)
            if form.form.levelled:
                its = resampled_power.mapped(lambda values, rows=rows: values[rows])
                its = its.levelled(float(data.batch_sizes[here][-1]))
            elif form is best or not len(rows):
                continue
            else:
                its = of_form(form, rows)[0]
            resampled = resampled.mapped(lambda values, its, rows=rows: _replaced(values, rows, its), its)
        method = f"bootstrap over {'seeds, learning rate chosen again' if seeds.freedom else 'residuals (one seed)'}"
        method += ", and over forms of the curve"
        if best.alike:
            method += ", scattered as widely as all residuals together, which are larger than seeds explain"
    return Fit(
        batch_sizes=data.batch_sizes[here],
        log_steps=log_steps[here],
        estimate=best.estimate,
        residual_rms=math.sqrt(weights @ best.residuals**2 / weights.sum()),
        resampled_log_steps=complete,
        resampled=resampled,
        form_of=form_of,
        forms=forms,
        power=power.estimate,
        resampled_power=resampled_power,
        interval_method=method,
        weights=weights,
        seed_variance=seeds.variance,
        seed_freedom=seeds.freedom,
        deviation=best.spread,
        freedom=best.freedom,
        misfit=best.misfit,
        bend=bend(data.batch_sizes[here], log_steps[here] - finer, weights, seeds, unknown, power.estimate),
        exponent=best.belief.whole,
        free_exponent=best.free,
        data=data,
        hyperbola=hyperbola,
        resampled_hyperbola=resampled_hyperbola,
    )


def _replaced(values: Array, rows: np.ndarray, others: Array) -> Array:
    replaced = np.array(values)
    replaced[rows] = others
    return replaced


def interval(values: Array, confidence: float) -> tuple[float | None, float | None]:
    """Return the percentile interval of positive resampled values; an end at 0 or infinity is ``None``."""
    if not len(values):
        return None, None
    low, high = np.quantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2], method="nearest")
    return (float(low) if 0 < low < np.inf else None, float(high) if np.isfinite(high) else None)
