"""What the bounds predict of the steps of one optimizer, held against the measured ones.

The bounds say that steps fall with the batch size and are convex in it, that examples are fewest at a batch size
inside, and which form the steps have. The first three are inequalities between measured steps. A margin is the ratio of
the two sides of one: above 1 it is kept. Its noise is that of seeds, as it compares measured steps and no curve; with
one seed that of the residuals of the fitted curve stands in. Of K margins every interval has the level at which all
hold together at that of the analysis (Bonferroni).
"""

from __future__ import annotations

import math
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

FALLING = "steps fall with the batch size"
CONVEX = "steps are convex in the batch size"
INSIDE = "examples are fewest at a batch size inside"
FORM = "steps have the form of the bound"


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


@dataclass(frozen=True)
class Measured:
    """Steps to target of one optimizer with resamples around them.

    Attributes:
        sizes: batch sizes that reached the target, shape ``[M]``.
        log_steps: the measured ones first, shape ``[1 + R, M]``.
        freedom: degrees of freedom of the noise.
        confidence: of the analysis.
    """

    sizes: Array
    log_steps: Array
    freedom: float
    confidence: float

    @classmethod
    def of(cls, answer: Answer) -> Measured | None:
        """That of an answer; ``None`` where its noise is not known, below three batch sizes."""
        fit, confidence = answer.fit, answer.confidence
        if fit is None or not len(fit.resampled_log_steps):
            return None
        drawn = fit.resampled_log_steps - fit.estimate.log_steps(fit.batch_sizes)
        freedom = float(fit.seed_freedom or fit.freedom)
        if fit.seed_freedom and fit.deviation > 0:
            grid = grid_variance(tables(answer.studies)) * float(fit.weights.mean())
            own = math.sqrt(max(fit.seed_variance, LEAST_DEVIATION**2) + grid) * widening(freedom, confidence)
            drawn = drawn * own / (fit.deviation * widening(fit.freedom, confidence))
        return cls(fit.batch_sizes, np.vstack([fit.log_steps, fit.log_steps + drawn]), freedom, confidence)

    def ends(self, margins: Array) -> Array:
        """Ends of the intervals of all ``margins`` ``[1 + R, K]`` together, shape ``[2, K]``.

        The resamples are widened by Student's t at the level of the analysis; that of one of K intervals is higher, and
        so is its t.
        """
        each = 1.0 - (1.0 - self.confidence) / margins.shape[1]
        wider = widening(self.freedom, each) / widening(self.freedom, self.confidence) if self.freedom > 0 else 1.0
        return percentiles(margins[0] + wider * (margins[1:] - margins[0]), each)

    def check(self, prediction: str, margins: Array) -> Check:
        """A prediction that every one of ``margins`` ``[1 + R, K]``, natural logarithms and each of as many batch sizes
        next to one another, is above 0."""
        low, high = self.ends(margins)
        failing = bool((high < 0).any())
        # what decides: the margin farthest on the wrong side, or else nearest to it
        worst = int(high.argmin()) if failing else int(low.argmin())
        verdict = Told.FAILS if failing else Told.HOLDS if low[worst] > 0 else Told.UNKNOWN
        place = ", ".join(f"{size:g}" for size in self.sizes[worst : worst + 1 + len(self.sizes) - len(low)])
        why = f"{(low > 0).sum()} of {len(low)} hold, worst at batch sizes {place}"
        return Check(prediction=prediction, verdict=verdict, margin=_ratio(margins, low, high, worst), why=why)


def shape_checks(answer: Answer) -> tuple[Check, ...]:
    """Those of the shape of steps and examples, which all bounds have in common."""
    found = Measured.of(answer)
    if found is None:
        why = "no interval: three batch sizes must reach the target"
        return tuple(Check(prediction=name, verdict=Told.UNKNOWN, why=why) for name in (FALLING, CONVEX, INSIDE))
    sizes, logs = found.sizes, found.log_steps
    # the chord over the value between its ends
    part = (sizes[2:] - sizes[1:-1]) / (sizes[2:] - sizes[:-2])
    chord = np.logaddexp(logs[:, :-2] + np.log(part), logs[:, 2:] + np.log1p(-part))
    return (
        found.check(FALLING, -np.diff(logs, axis=1)),
        found.check(CONVEX, chord - logs[:, 1:-1]),
        _inside(answer, found),
    )


def _inside(answer: Answer, found: Measured) -> Check:
    """Whether both the smallest and the largest batch size take more examples than some other.

    A smaller batch size that was given up without reaching the target took at least the examples it ran, where there is
    one learning rate: of several, another one than those tried may have been the best.
    """
    sizes, examples = found.sizes, found.log_steps + np.log(found.sizes)
    least, last = int(examples[0].argmin()), len(found.sizes) - 1
    above = examples - examples[:, [least]]
    low, high = found.ends(above[:, np.arange(last + 1) != least])[:, [0, -1]]

    def told(verdict: Told, why: str, end: int | None = None) -> Check:
        margin = UNKNOWN if end is None else _ratio(above[:, [0, -1]], low, high, end)
        return Check(prediction=INSIDE, verdict=verdict, why=why, margin=margin)

    if least == last:
        return told(Told.UNKNOWN, "fewest at the largest measured batch size: an optimum would lie there or beyond")
    # the largest of the resampled minima leaves the bound room for the noise of one seed
    most = float(np.quantile(examples[1:, least], found.confidence))
    for size, steps in _given_up_at_one_lr(answer):
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
    for size, steps in _given_up_at_one_lr(answer):
        said = float(found.form.log_steps(np.array([float(size)]))[0])
        if math.log(steps) > said + spread:
            return f"batch size {size} ran {number(steps)} steps; the form says {number(math.exp(said))}"
    return ""


def _given_up_at_one_lr(answer: Answer) -> list[tuple[int, float]]:
    """Batch sizes with one learning rate that did not reach the target, and the steps they ran."""
    pairs = zip(answer.points, answer.studies, strict=True)
    return [
        (point.batch_size, point.steps_lower_bound)
        for point, study in pairs
        if not point.reached and point.steps_lower_bound and len(study.lrs) == 1
    ]


def _ratio(margins: Array, low: Array, high: Array, place: int) -> Quantity:
    """One margin with its interval, no longer logarithms."""
    return Quantity(math.exp(margins[0, place]), (math.exp(low[place]), math.exp(high[place])))
