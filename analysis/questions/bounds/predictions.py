"""What the bounds predict of the steps of one optimizer, held against the measured ones.

The bounds say that steps fall with the batch size and are convex in it, that examples are convex and least inside, and
which form the steps have. Every one but the last is a set of inequalities between measured steps: a margin above 1 is
on the side of the prediction. Margins have simultaneous intervals: those of K margins hold together at the level of
the analysis (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from analysis.arrays import UNKNOWN, Array, Quantity, percentiles
from analysis.estimate.diagnosis import EXCESS_RMS, LACK_OF_FIT
from analysis.estimate.fitting import FEWEST_FREE, Fit, widening
from analysis.estimate.fitting.data import LEAST_DEVIATION
from analysis.estimate.fitting.quality import Misfit, grid_variance, misfit_of
from analysis.estimate.laws.steps_bound import BoundFit, fitted_data
from analysis.estimate.result import Answer
from analysis.estimate.study_fits import tables
from analysis.phrases import number, share


class Told(StrEnum):
    """Whether a prediction holds where it was looked at."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One prediction and what became of it.

    Attributes:
        prediction: in words.
        verdict: whether it holds on the measured batch sizes.
        margin: the worst one; above 1 on the side of the prediction.
        why: what decided, in words.
    """

    prediction: str
    verdict: Told
    margin: Quantity = field(default=UNKNOWN)
    why: str = ""


FALLING = "steps fall with the batch size"
CONVEX = "steps are convex in the batch size"
CONVEX_EXAMPLES = "examples are convex in the batch size"
INSIDE = "examples are fewest at a batch size inside"
SHAPES = (FALLING, CONVEX, CONVEX_EXAMPLES, INSIDE)
FORM = "steps have the form of the bound"


def shape_checks(answer: Answer) -> tuple[Check, ...]:
    """Those of the shape of steps and examples, which all bounds have in common."""
    fit = answer.fit
    if fit is None or not len(fit.resampled_log_steps):
        why = "no interval: three batch sizes must reach the target"
        return tuple(Check(prediction=name, verdict=Told.UNKNOWN, why=why) for name in SHAPES)
    sizes, logs = fit.batch_sizes, np.vstack([fit.log_steps, fit.measured_resamples])
    examples = logs + np.log(sizes)
    pairs, triples = ([sizes[at : at + many] for at in range(len(sizes) - many + 1)] for many in (2, 3))
    return (
        _check(FALLING, answer, logs[:, :-1] - logs[:, 1:], pairs),
        _check(CONVEX, answer, _bends(sizes, logs), triples),
        _check(CONVEX_EXAMPLES, answer, _bends(sizes, examples), triples),
        _inside(answer, fit, examples),
    )


def _bends(sizes: Array, logs: Array) -> Array:
    """Log of the chord over the value between its ends, above 0 where the curve is convex; shape ``[R, M - 2]``."""
    share = (sizes[2:] - sizes[1:-1]) / (sizes[2:] - sizes[:-2])
    chord = np.logaddexp(logs[:, :-2] + np.log(share), logs[:, 2:] + np.log1p(-share))
    return np.asarray(chord - logs[:, 1:-1])


def _check(prediction: str, answer: Answer, margins: Array, places: Sequence[Array]) -> Check:
    """A prediction that every one of ``margins`` ``[1 + R, K]``, the measured ones first, is above 0."""
    low, high = simultaneous(answer, margins)
    failing = np.flatnonzero(high < 0)
    # what decides: the margin farthest on the wrong side, or else nearest to it
    worst = int(high.argmin()) if len(failing) else int(low.argmin())
    verdict = Told.FAILS if len(failing) else Told.HOLDS if low[worst] > 0 else Told.UNKNOWN
    where = ", ".join(f"{size:g}" for size in places[worst])
    return Check(
        prediction=prediction, verdict=verdict, margin=_ratio(margins, low, high, worst), why=f"batch sizes {where}"
    )


def simultaneous(answer: Answer, margins: Array) -> Array:
    """Ends of the intervals of all columns of ``margins`` ``[1 + R, K]`` together, shape ``[2, K]``.

    The resamples are widened by Student's t at the level of the analysis; the level of one of K intervals is higher,
    and so is its t.
    """
    fit, confidence = answer.fit, answer.confidence
    assert fit is not None
    each = 1.0 - (1.0 - confidence) / margins.shape[1]
    wider = widening(fit.freedom, each) / widening(fit.freedom, confidence) if fit.freedom > 0 else 1.0
    return percentiles(margins[0] + wider * (margins[1:] - margins[0]), each)


def _ratio(margins: Array, low: Array, high: Array, place: int) -> Quantity:
    return Quantity(math.exp(margins[0, place]), (math.exp(low[place]), math.exp(high[place])))


def _inside(answer: Answer, fit: Fit, examples: Array) -> Check:
    """Whether both the smallest and the largest batch size take more examples than some other.

    A smaller batch size that was given up without reaching the target took at least the examples it ran, where there is
    one learning rate: of several, another one than those tried may have been the best.
    """
    sizes, least = fit.batch_sizes, int(examples[0].argmin())
    ends = examples[:, [0, -1]] - examples[:, [least]]
    low, high = simultaneous(answer, np.delete(examples - examples[:, [least]], least, axis=1))[:, [0, -1]]
    given_up = [(size, math.log(size * steps)) for size, steps in given_up_at_one_lr(answer) if size < sizes[least]]
    # the largest of the resampled minima leaves the bound room for the noise of one seed
    beyond = [size for size, bound in given_up if bound > float(np.quantile(examples[1:, least], answer.confidence))]
    if beyond and least < len(sizes) - 1:
        verdict = Told.HOLDS if low[1] > 0 else Told.UNKNOWN
        why = f"batch size {beyond[0]} took more examples than {sizes[least]:g} without reaching the target"
        return Check(prediction=INSIDE, verdict=verdict, margin=_ratio(ends, low, high, 1), why=why)
    if least == 0:
        alone = sizes[0] == 1 and bool(low[1] > 0) and _only_least(answer, examples)
        why = "fewest at the smallest measured batch size" + (
            ", and there is none below 1" if alone else ": an optimum would lie there or below"
        )
        return Check(prediction=INSIDE, verdict=Told.FAILS if alone else Told.UNKNOWN, why=why)
    if least == len(sizes) - 1:
        why = "fewest at the largest measured batch size: an optimum would lie there or beyond"
        return Check(prediction=INSIDE, verdict=Told.UNKNOWN, why=why)
    worst = int(low.argmin())
    why = f"batch size {sizes[least]:g} against {sizes[-1 if worst else 0]:g}"
    verdict = Told.HOLDS if low[worst] > 0 else Told.UNKNOWN
    return Check(prediction=INSIDE, verdict=verdict, margin=_ratio(ends, low, high, worst), why=why)


def _only_least(answer: Answer, examples: Array) -> bool:
    """Whether every other batch size takes more examples than the smallest."""
    return bool((simultaneous(answer, examples[:, 1:] - examples[:, :1])[0] > 0).all())


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
        return Check(prediction=FORM, verdict=Told.FAILS, why=f"{missed}; {why}"), test
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
    spread = 3.0 * max(fit.deviation, found.residual_rms, LEAST_DEVIATION)
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
