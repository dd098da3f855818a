"""Inequalities between measured steps, with intervals that hold together.

A margin is the ratio of two sides of an inequality: above 1 it is kept. Its noise is that of seeds, as it compares
measured steps and no curve; with one seed that of the residuals of the fitted curve stands in. Of K margins every
interval has the level at which all hold together at that of the analysis (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from analysis.arrays import UNKNOWN, Array, Quantity, percentiles
from analysis.estimate.fitting import widening
from analysis.estimate.fitting.data import LEAST_DEVIATION
from analysis.estimate.fitting.quality import grid_variance
from analysis.estimate.result import Answer
from analysis.estimate.study_fits import tables


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

    @property
    def log_examples(self) -> Array:
        """Shape ``[1 + R, M]``."""
        return self.log_steps + np.log(self.sizes)

    def runs(self, many: int) -> list[str]:
        """So many batch sizes next to one another, from each on, in words."""
        rows = [self.sizes[at : at + many] for at in range(len(self.sizes) - many + 1)]
        return [", ".join(f"{size:g}" for size in row) for row in rows]

    def upto(self, size: float) -> Measured:
        """The batch sizes up to this one."""
        kept = self.sizes <= size
        return Measured(self.sizes[kept], self.log_steps[:, kept], self.freedom, self.confidence)

    def ends(self, margins: Array) -> Array:
        """Ends of the intervals of all ``margins`` ``[1 + R, K]`` together, shape ``[2, K]``.

        The resamples are widened by Student's t at the level of the analysis; that of one of K intervals is higher, and
        so is its t.
        """
        each = 1.0 - (1.0 - self.confidence) / margins.shape[1]
        wider = widening(self.freedom, each) / widening(self.freedom, self.confidence) if self.freedom > 0 else 1.0
        return percentiles(margins[0] + wider * (margins[1:] - margins[0]), each)

    def check(self, prediction: str, margins: Array, places: list[str]) -> Check:
        """A prediction that every one of ``margins`` ``[1 + R, K]``, natural logarithms, is above 0."""
        low, high = self.ends(margins)
        failing = bool((high < 0).any())
        # what decides: the margin farthest on the wrong side, or else nearest to it
        worst = int(high.argmin()) if failing else int(low.argmin())
        verdict = Told.FAILS if failing else Told.HOLDS if low[worst] > 0 else Told.UNKNOWN
        why = f"{(low > 0).sum()} of {len(low)} hold, worst at batch sizes {places[worst]}"
        return Check(prediction=prediction, verdict=verdict, margin=ratio(margins, low, high, worst), why=why)


def bends(sizes: Array, logs: Array) -> Array:
    """Log of the chord over the value between its ends, above 0 where the curve is convex; shape ``[R, M - 2]``."""
    share = (sizes[2:] - sizes[1:-1]) / (sizes[2:] - sizes[:-2])
    chord = np.logaddexp(logs[:, :-2] + np.log(share), logs[:, 2:] + np.log1p(-share))
    return np.asarray(chord - logs[:, 1:-1])


def ratio(margins: Array, low: Array, high: Array, place: int) -> Quantity:
    """One margin with its interval, no longer logarithms."""
    return Quantity(math.exp(margins[0, place]), (math.exp(low[place]), math.exp(high[place])))
