"""Check the predictions of the bounds about the steps of one optimizer against measured ones.

The bounds predict that examples are fewest at an interior batch size, and the functional form of the steps. The first
prediction consists of two inequalities between measured examples. A margin is the ratio of the two sides of one: above
1 it holds. Its noise is that of seeds, because measured steps are compared, not a curve; with one seed, the residuals
of the fitted curve are used instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from analysis.arrays import UNKNOWN, Quantity, percentiles
from analysis.estimate.diagnosis import EXCESS_RMS, LACK_OF_FIT
from analysis.estimate.fitting import Fit
from analysis.estimate.fitting.data import LEAST_DEVIATION
from analysis.estimate.fitting.form_fits import FEWEST_FREE, widening
from analysis.estimate.fitting.misfit import Misfit, grid_variance
from analysis.estimate.fitting.quality import misfit_of
from analysis.estimate.result import Answer
from analysis.estimate.study_fits import tables
from analysis.extensions.theory.bounds.law import BoundFit, fitted_data
from analysis.phrases import number, share

INSIDE = "examples are fewest at an interior batch size"
FORM = "steps have the form of the bound"


class CheckOutcome(StrEnum):
    """Whether a prediction holds for the measured data."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNKNOWN = "undecided"


@dataclass(frozen=True, kw_only=True)
class PredictionCheck:
    """One prediction and its outcome; a margin above 1 supports it, and the worst margin counts."""

    prediction: str
    verdict: CheckOutcome
    margin: Quantity = field(default=UNKNOWN)
    why: str = ""


def inside_check(answer: Answer) -> PredictionCheck:
    """Check whether both the smallest and the largest batch size take more examples than some other.

    A smaller batch size that was given up without reaching the target took at least the examples it ran, provided that
    one learning rate was tried: among several, a learning rate between them might have been the best. The intervals
    hold jointly for all batch sizes (Bonferroni), because the minimum is chosen among them.
    """
    fit, confidence = answer.fit, answer.confidence
    if fit is None or not len(fit.resampled_log_steps):
        why = "no interval: three batch sizes must reach the target"
        return PredictionCheck(prediction=INSIDE, verdict=CheckOutcome.UNKNOWN, why=why)
    sizes, steps, freedom = fit.batch_sizes, fit.log_steps, float(fit.seed_freedom or fit.freedom)
    drawn, own = fit.resampled_log_steps - fit.estimate.log_steps(sizes), fit.deviation
    if fit.seed_freedom and fit.deviation > 0:
        grid = grid_variance(tables(answer.studies)) * float(fit.weights.mean())
        own = math.sqrt(max(fit.seed_variance, LEAST_DEVIATION**2) + grid)
    level = 1.0 - (1.0 - confidence) / (len(sizes) - 1)
    if fit.freedom > 0 and fit.deviation > 0:
        drawn = drawn * own * widening(freedom, level) / (fit.deviation * widening(fit.freedom, confidence))
    examples = np.vstack([steps, steps + drawn]) + np.log(sizes)
    least, last = int(examples[0].argmin()), len(sizes) - 1
    above = examples - examples[:, [least]]
    low, high = percentiles(above[1:], level)

    def checked(verdict: CheckOutcome, why: str, end: int | None = None) -> PredictionCheck:
        of = UNKNOWN if end is None else Quantity(math.exp(above[0, end]), (math.exp(low[end]), math.exp(high[end])))
        return PredictionCheck(prediction=INSIDE, verdict=verdict, why=why, margin=of)

    if least == last:
        return checked(
            CheckOutcome.UNKNOWN, "fewest at the largest measured batch size: an optimum would lie there or beyond"
        )
    # the upper end of the resampled minima leaves the bound room for the noise of one seed
    most = float(np.quantile(examples[1:, least], confidence))
    for size, count in _given_up_at_one_lr(answer):
        if size < sizes[least] and math.log(size * count) > most:
            why = f"batch size {size} took more examples than {sizes[least]:g} without reaching the target"
            return checked(CheckOutcome.HOLDS if low[-1] > 0 else CheckOutcome.UNKNOWN, why, -1)
    if least == 0:
        if sizes[0] == 1 and (low[1:] > 0).all():
            return checked(CheckOutcome.FAILS, "fewest at batch size 1")
        return checked(
            CheckOutcome.UNKNOWN, "fewest at the smallest measured batch size: an optimum would lie there or below"
        )
    worst = 0 if low[0] <= low[-1] else -1
    why = f"batch size {sizes[least]:g} against {sizes[worst]:g}"
    return checked(CheckOutcome.HOLDS if low[worst] > 0 else CheckOutcome.UNKNOWN, why, worst)


def form_check(answer: Answer, bound_fit: BoundFit | None) -> tuple[PredictionCheck, Misfit | None]:
    """Check by the test of lack of fit whether the steps have the form of the bound; also return the test.

    The prediction fails if residuals are too large for the noise of seeds and larger than what an interval covers; it
    holds if they are neither, the data bound the pole, and there are four batch sizes or more. It also fails if a batch
    size above the pole was given up although the form predicts that it reaches the target in far fewer steps.
    """
    fit = answer.fit
    if fit is None or bound_fit is None:
        return PredictionCheck(
            prediction=FORM, verdict=CheckOutcome.UNKNOWN, why="too few batch sizes reached the target"
        ), None
    grid = grid_variance(tables(answer.studies))
    test = misfit_of(bound_fit.form.log_steps(fit.batch_sizes), fit, fitted_data(fit), bound_fit.freedom, grid)
    why = f"{100 * bound_fit.residual_rms:.2g} % rms off the form, {100 * fit.residual_rms:.2g} % off the curve"
    if missed := _missed(answer, bound_fit, fit):
        why = f"{missed}; {why}"
        if test is not None:
            return PredictionCheck(prediction=FORM, verdict=CheckOutcome.FAILS, why=why), test
    if test is None:
        return PredictionCheck(
            prediction=FORM, verdict=CheckOutcome.UNKNOWN, why=f"{why}; one seed, so the noise is unknown"
        ), test
    why += f" (p = {share(test.probability)})"
    if test.probability < LACK_OF_FIT and test.excess_rms > EXCESS_RMS:
        return PredictionCheck(prediction=FORM, verdict=CheckOutcome.FAILS, why=why), test
    bounded = bound_fit.best.value is not None and None not in bound_fit.best.interval
    enough = len(fit.batch_sizes) >= FEWEST_FREE and bounded
    why += "" if enough else "; the data do not bound the pole" if not bounded else "; four batch sizes are needed"
    enough &= test.excess_rms <= EXCESS_RMS
    return PredictionCheck(
        prediction=FORM, verdict=CheckOutcome.HOLDS if enough else CheckOutcome.UNKNOWN, why=why
    ), test


def _missed(answer: Answer, bound_fit: BoundFit, fit: Fit) -> str:
    """Describe a batch size that ran without reaching the target far beyond the steps that the form predicts; or
    empty."""
    spread = 3.0 * max(math.sqrt(fit.seed_variance), bound_fit.residual_rms, LEAST_DEVIATION)
    for size, steps in _given_up_at_one_lr(answer):
        predicted = float(bound_fit.form.log_steps(np.array([float(size)]))[0])
        if math.log(steps) > predicted + spread:
            return f"batch size {size} ran {number(steps)} steps; the form says {number(math.exp(predicted))}"
    return ""


def _given_up_at_one_lr(answer: Answer) -> list[tuple[int, float]]:
    """Return the batch sizes with one learning rate that did not reach the target, and the steps they ran."""
    pairs = zip(answer.points, answer.studies, strict=True)
    return [
        (point.batch_size, point.steps_lower_bound)
        for point, study in pairs
        if not point.reached and point.steps_lower_bound and len(study.lrs) == 1
    ]
