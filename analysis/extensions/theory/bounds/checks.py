"""What the bounds predict of the steps of one optimizer, held against the measured ones.

The bounds say that examples are fewest at an interior batch size, and which form the steps have. The first is two
inequalities between measured examples. A margin is the ratio of the sides of one: above 1 it is kept. Its noise is that
of seeds, as it compares measured steps and no curve; with one seed that of the residuals of the fitted curve stands in.
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
    """Whether a prediction holds where it was looked at."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNKNOWN = "undecided"


@dataclass(frozen=True, kw_only=True)
class PredictionCheck:
    """One prediction and what became of it; a margin above 1 is on its side, and the worst one counts."""

    prediction: str
    verdict: CheckOutcome
    margin: Quantity = field(default=UNKNOWN)
    why: str = ""


def inside_check(answer: Answer) -> PredictionCheck:
    """Whether both the smallest and the largest batch size take more examples than some other.

    A smaller batch size that was given up without reaching the target took at least the examples it ran, where there is
    one learning rate: of several, another one than those tried may have been the best. The intervals hold together for
    all batch sizes (Bonferroni), as the least is chosen among them.
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
    # the largest of the resampled minima leaves the bound room for the noise of one seed
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
    """Whether the steps have the form of the bound, by the test of lack of fit, and the test.

    It fails where residuals are too large for the noise of seeds and larger than what an interval takes up; it holds
    where they are neither and the data bound the pole, with four batch sizes or more. A batch size that was given up
    above the pole, where the form says that the target is reached in far fewer steps, speaks against it too.
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
            prediction=FORM, verdict=CheckOutcome.UNKNOWN, why=f"{why}; one seed: the noise is not known"
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
    """A batch size that ran on without reaching the target where the form says it was reached long before."""
    spread = 3.0 * max(math.sqrt(fit.seed_variance), bound_fit.residual_rms, LEAST_DEVIATION)
    for size, steps in _given_up_at_one_lr(answer):
        predicted = float(bound_fit.form.log_steps(np.array([float(size)]))[0])
        if math.log(steps) > predicted + spread:
            return f"batch size {size} ran {number(steps)} steps; the form says {number(math.exp(predicted))}"
    return ""


def _given_up_at_one_lr(answer: Answer) -> list[tuple[int, float]]:
    """Batch sizes with one learning rate that did not reach the target, and the steps they ran."""
    pairs = zip(answer.points, answer.studies, strict=True)
    return [
        (point.batch_size, point.steps_lower_bound)
        for point, study in pairs
        if not point.reached and point.steps_lower_bound and len(study.lrs) == 1
    ]
