r"""The most likely curve of every form, and the support that each form gets from the data.

All forms have equally many parameters, so the support is the likelihood at the best ones. With the variance of a seed
integrated out (prior :math:`1/\sigma^2`), for seeds of variance :math:`s^2` with :math:`\nu` degrees of freedom and the
sum of squares Q that a fit leaves at M batch sizes, it is

.. math:: L \propto (\nu s^2 + Q)^{-(\nu + M - 2)/2}

(Gelman et al., "Bayesian Data Analysis", section 14.2). The prior of the exponent is included in Q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.special import ndtri, stdtrit

from analysis.arrays import Array
from analysis.estimate.curves import StepsCurve
from analysis.estimate.fitting.bootstrap import Seeds
from analysis.estimate.fitting.data import LEAST_DEVIATION, Data
from analysis.estimate.fitting.exponent import Belief
from analysis.estimate.fitting.forms import FORMS, POWER, CurveForm
from analysis.estimate.fitting.least_squares import FREE, HYPERBOLA, Exponent, information
from analysis.estimate.fitting.misfit import Misfit, lack_of_fit

TINY = 1e-300
_ROUNDS = 3
ALIKE = 0.05
"""If the probability of :class:`Misfit` is below this, residuals count as one departure, not one per batch size."""

FEWEST_FREE = 4
"""Number of batch sizes below which a fit with a free exponent leaves no residual."""


@dataclass(frozen=True)
class FormFit:
    """The fit of one form.

    Attributes:
        form: the form.
        estimate: the most likely curve, scalars.
        belief: prior of its exponent.
        free: exponent from the data alone; ``None`` below :data:`FEWEST_FREE` batch sizes.
        deviation, freedom: standard deviation of the log steps of one seed around the curve, and its degrees of
            freedom.
        misfit: how far the points lie off the curve; ``None`` if undefined.
        spread: standard deviation for drawing resamples, before widening for its own uncertainty: ``deviation``, or
            that of all residuals together if seeds do not explain them (:data:`ALIKE`).
        residuals: residuals of log steps at the batch sizes that reached the target, shape ``[M]``.
        likelihood: likelihood relative to the form that the data support most.
        share: share of the resamples: its ``belief`` times its ``likelihood``, normalised over all forms.
    """

    form: CurveForm
    estimate: StepsCurve
    belief: Belief
    free: Exponent | None
    deviation: float
    freedom: float
    misfit: Misfit | None
    spread: float
    residuals: Array
    likelihood: float = 1.0
    share: float = 1.0

    @property
    def alike(self) -> bool:
        """Whether its residuals count as one departure from the curve."""
        return self.spread > self.deviation


def fit_forms(
    data: Data, hyperbola: StepsCurve, belief: Belief, seeds: Seeds, grid: float, confidence: float
) -> list[FormFit]:
    """Fit every form of :data:`analysis.estimate.fitting.forms.FORMS`, in their order.

    Args:
        data: the data of the curve.
        hyperbola: the hyperbola fitted without bounds, from which the fits start.
        belief: prior of the exponent, before it is widened by the free exponent of a form.
        seeds: scatter of the seeds.
        grid: as for :func:`analysis.estimate.fitting.misfit.lack_of_fit`.
        confidence: confidence of the intervals.
    """
    alone = data.unbounded()
    largest = float(alone.batch_sizes[-1])
    count, fits, logs = len(alone.batch_sizes), {}, {}
    forms = FORMS if count > 2 else (POWER,)
    for form in forms:
        if form.levelled:
            continue
        alone_says = free(alone, seeds, confidence, form.knee) if count >= FEWEST_FREE else None
        mine = belief.giving_way(alone_says)
        curve, deviation, freedom = fitted(data, mine.whole, seeds, hyperbola, form.knee)
        rows = curve.log_steps(data.batch_sizes)
        residuals, left = data.completed(rows[None], deviation)[0] - rows, freedom - seeds.freedom
        here, weights = data.reached, data.all_weights
        misfit = lack_of_fit(residuals[here], weights[here], left, seeds.variance, seeds.freedom, grid)
        alike = misfit is not None and misfit.probability < ALIKE and left > 1
        spread = deviation * math.sqrt(left) if alike else deviation
        beyond = math.log(float(curve.exponent)) - float(mine.whole.log_mean)
        squares = float(weights @ residuals**2) + deviation**2 * beyond**2 / float(mine.whole.variance)
        fits[form.knee] = FormFit(form, curve, mine, alone_says, deviation, freedom, misfit, spread, residuals[here])
        together = seeds.freedom + count
        squares += seeds.freedom * seeds.variance + together * LEAST_DEVIATION**2
        logs[form.knee] = -0.5 * (together - 2) * math.log(squares)
    most = max(logs.values())
    shares = [form.belief * math.exp(logs[form.knee] - most) for form in forms]
    return [
        replace(
            fits[form.knee],
            form=form,
            estimate=fits[form.knee].estimate.levelled(largest) if form.levelled else fits[form.knee].estimate,
            likelihood=math.exp(logs[form.knee] - most),
            share=share / sum(shares),
        )
        for form, share in zip(forms, shares, strict=True)
    ]


def widening(freedom: float, confidence: float) -> float:
    """Return the ratio of the quantiles of Student's t and the normal distribution, for an estimated deviation."""
    tail = 0.5 + confidence / 2
    return float(stdtrit(freedom, tail) / ndtri(tail))


def free(alone: Data, seeds: Seeds, confidence: float, knee: float = 1.0) -> Exponent:
    """Estimate the exponent from the data alone, with the variance of the linearised fit, widened by Student's t."""
    curve = alone.fit(FREE, 1.0, knee=knee).row(0)
    deviation, freedom = _deviation(alone, curve, 0.0, seeds, len(alone.batch_sizes) - 3)
    deviation *= widening(freedom, confidence)
    spare = _known_of_exponent(alone.batch_sizes, curve, alone.weights)
    return Exponent(math.log(float(curve.exponent)), deviation**2 / spare if spare > TINY else math.inf)


def fitted(
    data: Data, exponent: Exponent, seeds: Seeds, curve: StepsCurve, knee: float = 1.0
) -> tuple[StepsCurve, float, float]:
    """Return the most likely curve, the standard deviation of a seed around it, and its degrees of freedom.

    The exponent takes one degree of freedom of the residuals to the extent that it is determined by the data rather
    than the prior. The three depend on each other and are found by iteration. With three batch sizes the residuals are
    those of the hyperbola, because three parameters leave none; with two the hyperbola is the curve. The search starts
    at ``curve``, the hyperbola fitted without bounds.
    """
    count = int(data.reached.sum())
    alone = data.unbounded()
    freedom = float(count - 2)
    deviation, known = _deviation(alone, curve, 0.0, seeds, freedom)
    turns = 0 if exponent.held or count < 3 else 1 if count < FEWEST_FREE else _ROUNDS
    for part in (alone, data) if len(data.bounds) else (alone,):
        if exponent.held or count < 3:
            curve = part.fit(HYPERBOLA, max(deviation, TINY), start=curve).row(0)
        for _ in range(turns):
            curve = part.fit(exponent, max(deviation, TINY), start=curve, knee=knee).row(0)
            if count >= FEWEST_FREE:
                freedom = count - 2 - _share(part, curve, deviation, exponent)
                deviation, known = _deviation(part, curve, deviation, seeds, freedom)
    return curve, deviation, known


def _share(data: Data, curve: StepsCurve, deviation: float, exponent: Exponent) -> float:
    """Return the share of the information on the exponent that comes from the data, 0 to 1."""
    spare = _known_of_exponent(data.batch_sizes, curve, data.all_weights)
    before = deviation**2 / float(exponent.variance)
    return spare / (spare + before) if spare + before > 0 else 1.0


def _known_of_exponent(batch_sizes: Array, curve: StepsCurve, weights: Array) -> float:
    """Return the information on the log exponent with ``ln B_crit`` profiled out, for unit variance of a seed."""
    known = information(batch_sizes, curve, weights)
    return float(known[1, 1] - known[0, 1] ** 2 / known[0, 0]) if known[0, 0] > 0 else 0.0


def _deviation(data: Data, curve: StepsCurve, deviation: float, seeds: Seeds, freedom: float) -> tuple[float, float]:
    """Return the pooled deviation around a curve; see :func:`pooled_deviation`."""
    fitted = curve.log_steps(data.batch_sizes)
    squares = float(data.all_weights @ (data.completed(fitted[None], deviation)[0] - fitted) ** 2)
    return pooled_deviation(squares, freedom, seeds.variance, seeds.freedom)


def pooled_deviation(squares: float, freedom: float, variance: float, known: float) -> tuple[float, float]:
    """Return the standard deviation of one seed's log steps, and its degrees of freedom.

    The squared residuals of a fit are pooled with the ``variance`` of seeds, which has ``known`` degrees of freedom. If
    the residuals are larger than those of seeds they count alone, because they contain errors that seeds cannot show.
    """
    if freedom <= 0:
        return math.sqrt(variance), known
    together = freedom + known
    return math.sqrt(max((squares + known * variance) / together, squares / freedom)), together
