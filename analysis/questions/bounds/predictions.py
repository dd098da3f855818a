"""What the bounds predict of the steps of one optimizer, held against the measured ones.

The bounds say that steps fall with the batch size and are convex in it, that examples fall to a least value inside and
then rise, up to where they are convex, and which form the steps have. Every one but the last is a set of inequalities
between measured steps, see :mod:`.margins`.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.estimate.diagnosis import EXCESS_RMS, LACK_OF_FIT
from analysis.estimate.fitting import FEWEST_FREE, Fit
from analysis.estimate.fitting.data import LEAST_DEVIATION
from analysis.estimate.fitting.quality import Misfit, grid_variance, misfit_of
from analysis.estimate.laws.steps_bound import BoundFit, fitted_data
from analysis.estimate.result import Answer
from analysis.estimate.study_fits import tables
from analysis.phrases import number, share
from analysis.questions.bounds.margins import Check, Measured, Told, bends, ratio

FALLING = "steps fall with the batch size"
CONVEX = "steps are convex in the batch size"
VALLEY = "examples fall, then rise, with the batch size"
INSIDE = "examples are fewest at a batch size inside"
CONVEX_EXAMPLES = "examples are convex up to where the form is"
SHAPES = (FALLING, CONVEX, VALLEY, INSIDE)
FORM = "steps have the form of the bound"


def shape_checks(answer: Answer) -> tuple[Check, ...]:
    """Those of the shape of steps and examples, which all bounds have in common."""
    found = Measured.of(answer)
    if found is None:
        why = "no interval: three batch sizes must reach the target"
        return tuple(Check(prediction=name, verdict=Told.UNKNOWN, why=why) for name in SHAPES)
    examples = found.log_examples
    rising, least = np.diff(examples, axis=1), int(examples[0].argmin())
    valley = np.where(np.arange(rising.shape[1]) < least, -rising, rising)
    return (
        found.check(FALLING, -np.diff(found.log_steps, axis=1), found.runs(2)),
        found.check(CONVEX, bends(found.sizes, found.log_steps), found.runs(3)),
        found.check(VALLEY, valley, found.runs(2)),
        _inside(answer, found),
    )


def convex_examples(answer: Answer, bound: BoundFit | None, form: Check) -> Check:
    """Whether examples are convex up to where those of the form are, for the form that the steps have."""
    found = Measured.of(answer)
    if found is None or bound is None or form.verdict is not Told.HOLDS:
        return Check(prediction=CONVEX_EXAMPLES, verdict=Told.UNKNOWN, why="the form does not say up to where")
    until = float(bound.form.convex_until)
    within = found.upto(until)
    if len(within.sizes) < 3:
        why = f"convex up to batch size {number(until)}: no three measured ones lie there"
        return Check(prediction=CONVEX_EXAMPLES, verdict=Told.UNKNOWN, why=why)
    return within.check(CONVEX_EXAMPLES, bends(within.sizes, within.log_examples), within.runs(3))


def _inside(answer: Answer, found: Measured) -> Check:
    """Whether both the smallest and the largest batch size take more examples than some other.

    A smaller batch size that was given up without reaching the target took at least the examples it ran, where there is
    one learning rate: of several, another one than those tried may have been the best.
    """
    sizes, examples = found.sizes, found.log_examples
    least, last = int(examples[0].argmin()), len(found.sizes) - 1
    above = examples - examples[:, [least]]
    low, high = found.ends(above[:, np.arange(last + 1) != least])[:, [0, -1]]

    def told(verdict: Told, why: str, end: int | None = None) -> Check:
        margin = {} if end is None else {"margin": ratio(above[:, [0, -1]], low, high, end)}
        return Check(prediction=INSIDE, verdict=verdict, why=why, **margin)

    if least == last:
        return told(Told.UNKNOWN, "fewest at the largest measured batch size: an optimum would lie there or beyond")
    # the largest of the resampled minima leaves the bound room for the noise of one seed
    most = float(np.quantile(examples[1:, least], found.confidence))
    for size, steps in given_up_at_one_lr(answer):
        if size < sizes[least] and math.log(size * steps) > most:
            why = f"batch size {size} took more examples than {sizes[least]:g} without reaching the target"
            return told(Told.HOLDS if low[1] > 0 else Told.UNKNOWN, why, 1)
    if least == 0:
        if sizes[0] == 1 and (found.ends(above[:, 1:])[0] > 0).all():
            return told(Told.FAILS, "fewest at batch size 1")
        return told(Told.UNKNOWN, "fewest at the smallest measured batch size: an optimum would lie there or below")
    worst = int(low.argmin())
    why = f"batch size {sizes[least]:g} against {sizes[-1 if worst else 0]:g}"
    return told(Told.HOLDS if low[worst] > 0 else Told.UNKNOWN, why, worst)


def form_check(answer: Answer, found: BoundFit | None) -> tuple[Check, Misfit | None]:
    """Whether the steps have the form of the bound, by the test of lack of fit, and the test.

    It fails where residuals are too large for the noise of seeds and larger than what an interval takes up; it holds
    where they are neither and the data bound the pole, with four batch sizes or more. A batch size that was given up
    above the pole, where the form says that the target is reached in far fewer steps, speaks against it too.
    """
    fit = answer.fit
    if fit is None or found is None:
        return Check(prediction=FORM, verdict=Told.UNKNOWN, why="too few batch sizes reached the target"), None
    test = misfit_of(found.form, fit, fitted_data(fit), found.freedom, grid_variance(tables(answer.studies)))
    why = f"{100 * found.residual_rms:.2g} % rms off the form, {100 * fit.residual_rms:.2g} % off the curve"
    if missed := _missed(answer, found, fit):
        why = f"{missed}; {why}"
        if test is not None:
            return Check(prediction=FORM, verdict=Told.FAILS, why=why), test
    if test is None:
        return Check(prediction=FORM, verdict=Told.UNKNOWN, why=f"{why}; one seed: the noise is not known"), test
    why += f" (p = {share(test.probability)})"
    if test.probability < LACK_OF_FIT and test.excess_rms > EXCESS_RMS:
        return Check(prediction=FORM, verdict=Told.FAILS, why=why), test
    bounded = found.best.value is not None and None not in found.best.interval
    enough = len(fit.batch_sizes) >= FEWEST_FREE and bounded
    why += "" if enough else "; the data do not bound the pole" if not bounded else "; four batch sizes are needed"
    enough &= test.excess_rms <= EXCESS_RMS
    return Check(prediction=FORM, verdict=Told.HOLDS if enough else Told.UNKNOWN, why=why), test


def _missed(answer: Answer, found: BoundFit, fit: Fit) -> str:
    """A batch size that ran on without reaching the target where the form says it was reached long before."""
    spread = 3.0 * max(math.sqrt(fit.seed_variance), found.residual_rms, LEAST_DEVIATION)
    for size, steps in given_up_at_one_lr(answer):
        said = float(found.form.log_steps(np.array([float(size)]))[0])
        if math.log(steps) > said + spread:
            return f"batch size {size} ran {number(steps)} steps; the form says {number(math.exp(said))}"
    return ""


def given_up_at_one_lr(answer: Answer) -> list[tuple[int, float]]:
    """Batch sizes with one learning rate that did not reach the target, and the steps they ran."""
    pairs = zip(answer.points, answer.studies, strict=True)
    return [
        (point.batch_size, point.steps_lower_bound)
        for point, study in pairs
        if not point.reached and point.steps_lower_bound and len(study.lrs) == 1
    ]
