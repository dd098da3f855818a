r"""Fit a power law :math:`y = c\,x^k` to points with errors in both coordinates and additional scatter.

In logarithms the law is a line. Sets of points may have constants of their own and share the exponent (fixed effects).
Every point is weighted by the variance of :math:`\ln y - k \ln x` over its draws, so that errors in ``x``
correlated with those in ``y`` are treated correctly (York 1966), plus the scatter of
:mod:`analysis.questions.scale.scatter`. The correlation between points of the same runs enters the intervals but not
the weights: weights by the inverse of a nearly singular covariance can put a pooled exponent outside the range of all
that it is pooled from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.arrays import Array, percentiles, widening
from analysis.config import DEFAULT, AnalysisConfig
from analysis.plain import plain, shown
from analysis.questions.scale import scatter
from analysis.questions.scale.scatter import Scatter

_ITERATIONS = 30
_TOLERANCE = 1e-6
"""Tolerance of the exponent; the scatter, found by a search, is not more exact."""

Ends = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Points of a law in natural logarithms.

    Attributes:
        log_x, log_y: the points, shape ``[n]``.
        log_x_draws, log_y_draws: draws, shape ``[R, n]``; only their deviations from the mean over ``R``
            are used. Equal rows mean exact numbers.
        runs: index of the runs that every point comes from, shape ``[n]``. Draws of one index are compared row by
            row; those of different indices must be independent.
        sets: index of the set, 0, 1, ..., with a constant of its own, shape ``[n]``.
    """

    log_x: Array
    log_y: Array
    log_x_draws: Array = field(repr=False)
    log_y_draws: Array = field(repr=False)
    runs: np.ndarray
    sets: np.ndarray

    @property
    def design(self) -> Array:
        """Design matrix: one constant per set, and ``log_x``; shape ``[n, sets + 1]``."""
        constants = np.equal.outer(self.sets, np.arange(self.sets.max() + 1)).astype(float)
        return np.column_stack([constants, self.log_x])

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the scatter.

        It is points minus parameters. If ``x`` is the same for all points of the same runs, only differences between
        runs determine the exponent, and several targets of one run add nothing: then it is runs minus the exponent
        minus one constant for all sets that share runs.
        """
        from scipy.sparse.csgraph import connected_components

        runs, run = np.unique(self.runs, return_inverse=True)
        spread = [np.ptp(self.log_x[run == index]) for index in range(len(runs))]
        sets = int(self.sets.max()) + 1
        if max(spread) > 0:
            return len(self.log_x) - sets - 1
        links = np.zeros((sets + len(runs), sets + len(runs)))
        links[self.sets, sets + run] = 1
        return len(runs) - 1 - int(connected_components(links, directed=False)[0])


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """A fitted power law.

    Attributes:
        exponent_interval: interval of the exponent ``k``, including the scatter.
        exponent_interval_of_errors: the same if the law held exactly, without scatter beyond the points' own
            errors.
        log_constants: ``ln c`` of every set.
        constant_intervals: interval of ``c`` of every set.
        scatter: scatter beyond the points' own errors; ``None`` if there are no degrees of freedom to estimate it
            (``freedom`` 0): the intervals then include only the points' own errors.
        freedom: see :attr:`Observations.freedom`.
        drawn: ``ln c`` of every set and ``k`` on every draw, shape ``[R, sets + 1]``.
        new_point: deviations of a new point of other runs from the law, shape ``[R]``.
    """

    exponent: float
    exponent_interval: Ends
    exponent_interval_of_errors: Ends
    log_constants: Array = field(repr=False)
    constant_intervals: tuple[Ends, ...]
    scatter: Scatter | None = field(repr=False)
    freedom: int
    residual_rms: float
    confidence: float = field(repr=False)
    drawn: Array = field(repr=False)
    new_point: Array = field(repr=False)

    @property
    def constants(self) -> Array:
        """``c`` of every set."""
        return np.exp(self.log_constants)

    def at(self, x: Array | float) -> Array:
        """Return ``y`` of the law of the first set."""
        return np.asarray(np.exp(self.log_constants[0] + self.exponent * np.log(x)))

    def prediction(self, x: Array | float) -> tuple[Array, Array]:
        """Return the interval of the true ``y`` of a new point at every ``x``: uncertainty of the law and scatter."""
        log_x = np.log(np.atleast_1d(np.asarray(x, dtype=float)))
        law = self.drawn[:, 0, None] + self.drawn[:, -1, None] * log_x
        low, high = percentiles(law + self.new_point[:, None], self.confidence)
        return np.exp(low), np.exp(high)

    def to_json(self) -> dict[str, Any]:
        scatter = None if self.scatter is None else self.scatter.total
        return shown(self) | {"constants": plain(self.constants), "scatter": scatter}


def fit(observations: Observations, config: AnalysisConfig = DEFAULT) -> PowerLaw:
    r"""Fit the law to the points, and to draws of them.

    Each moves every point by the deviation of its own draw and by a normal one of the scatter. These are multiplied
    by :math:`\max(1, \sqrt{q}\,t/z)`, where ``q`` is the weighted mean squared residual and ``t`` and ``z``
    are the quantiles of Student's t at the degrees of freedom and of the normal distribution: the variance of Hartung
    and Knapp (2001), but never less than that of the points' own errors. On synthetic laws (3 to 8 points, scatter from
    none to five times the errors) the 95 % interval of the exponent covered the truth in 93 to 99 %; most with three
    points.

    Raises:
        ValueError: if no two points of a set differ in ``x``, or there are fewer points than parameters.
    """
    design = observations.design
    n, p = design.shape
    if n < p or np.linalg.matrix_rank(design) < p:
        raise ValueError("the points do not determine the law")
    dx = observations.log_x_draws - observations.log_x_draws.mean(axis=0)
    dy = observations.log_y_draws - observations.log_y_draws.mean(axis=0)
    y, runs, freedom = observations.log_y, observations.runs, observations.freedom
    together = scatter.same(runs)
    beta = np.linalg.lstsq(design, y, rcond=None)[0]
    between: Scatter | None = None
    for _ in range(_ITERATIONS):
        deviations = dy - beta[-1] * dx
        errors = together * (deviations.T @ deviations / len(deviations))
        between = scatter.estimate(y, design, errors, runs) if freedom > 0 else None
        covariance = errors + scatter.FLOOR * np.eye(n) + (between.covariance(runs) if between else 0.0)
        variance = np.diag(covariance)
        # x as estimated from the residuals: otherwise errors in x would bias the exponent towards zero
        instrument = design.copy()
        instrument[:, -1] -= (dx * deviations).mean(axis=0) * (y - design @ beta) / variance
        weighted = instrument / variance[:, None]
        before, beta = beta[-1], np.linalg.solve(weighted.T @ design, weighted.T @ y)
        if not dx.any() or abs(beta[-1] - before) < _TOLERANCE * max(1.0, abs(before)):
            break
    deviations = dy - beta[-1] * dx
    gain = np.linalg.solve(weighted.T @ design, weighted.T)
    residual = y - design @ beta
    rng, confidence = np.random.default_rng(config.seed), config.confidence
    drawn, new_point, wider = deviations, np.zeros(len(deviations)), 1.0
    if between:
        squares = scatter.generalised(y, design, covariance)[0]
        wider = max(1.0, math.sqrt(squares / (n - p)) * widening(freedom, confidence))
        drawn = deviations + between.draw(runs, len(deviations), rng)
        total = scatter.plausible(y, design, errors, runs, between, len(deviations), rng)
        new_point = total * rng.standard_normal(len(deviations))
    moved = beta + wider * drawn @ gain.T
    alone = beta[-1] + deviations @ gain[-1]
    low, high = percentiles(moved, confidence)
    return PowerLaw(
        exponent=float(beta[-1]),
        exponent_interval=(float(low[-1]), float(high[-1])),
        exponent_interval_of_errors=tuple(map(float, percentiles(alone, confidence))),  # type: ignore[arg-type]
        log_constants=np.asarray(beta[:-1], dtype=float),
        constant_intervals=tuple((math.exp(a), math.exp(b)) for a, b in zip(low[:-1], high[:-1], strict=True)),
        scatter=between,
        freedom=freedom,
        residual_rms=float(np.sqrt(np.mean(residual**2))),
        confidence=confidence,
        drawn=moved,
        new_point=new_point,
    )
