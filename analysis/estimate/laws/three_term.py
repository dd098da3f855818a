r"""One law of loss, model size, steps and batch size, fitted to all runs of all models at once.

Kaplan et al. (2020), "Scaling Laws for Neural Language Models", equations 1.4, 1.6 and 5.4, with an irreducible loss:

.. math::

    L(N, S, B) = E + (N_c/N)^{\alpha_N} + (S_c/S_{min})^{\alpha_S}, \qquad
    S_{min} = \frac{S}{1 + B_{crit}(L)/B}, \qquad B_{crit}(L) = B_*/L^{1/\alpha_B}

Solved for the steps it is a regression of one number on three:

.. math::

    \ln S = \ln S_c - \tfrac{1}{\alpha_S} \ln\bigl(L - E - (N_c/N)^{\alpha_N}\bigr) + \ln\bigl(1 + B_{crit}(L)/B\bigr)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from analysis.arrays import Array, Interval
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.fitting import interval, widening
from analysis.estimate.fitting.least_squares import minimized, regression
from analysis.estimate.forms import Runs
from analysis.plain import shown

_STARTS = 12
_SMALLEST_GAP = 1e-4
"""Share of the loss; closer to its floor the law is continued by a straight line, so that every start is defined."""

_ALPHA_S, _ALPHA_N = (0.02, 20.0), (1e-3, 5.0)
"""Where the exponents are looked for; an estimate at an end is not determined."""

_AT_BOUND = 1e-3
_STEPS = 400
_REFITS = 500

_NOTHING = -1e3
"""Logarithm of a term that is dropped."""

FAR_OFF = 0.1
"""Residual of ln S, rms, above which a law is doubted: more than three seeds of most workloads scatter."""


@dataclass(frozen=True, kw_only=True)
class Points(Runs):
    """What the law is fitted to: runs up to a loss, one entry per model, loss and batch size; ``group`` is one number
    for all losses read from the same curves.

    Attributes:
        seeds: weight, shape ``[n]``.
    """

    seeds: Array


@dataclass(frozen=True, kw_only=True)
class ThreeTermLaw:
    """The fitted law.

    Attributes:
        values: by name: ``E`` (loss), ``N_c`` (parameters), ``alpha_N``, ``S_c`` (steps), ``alpha_S``, ``B_star``
            (examples), ``alpha_B``; without those of dropped terms. ``None`` where the data do not determine it.
        intervals: of the values; an open end is ``None``.
        remarks: what was dropped, and why; that points lie far off the law.
        residual_rms: of ``ln S``.
        bias: by model size, mean residual of ``ln S``: what this size needs more than the law says.
        points, independent_points: number of entries, and of trials among them.
    """

    values: dict[str, float | None]
    intervals: dict[str, Interval]
    remarks: tuple[str, ...]
    residual_rms: float
    bias: dict[float, float]
    points: int
    independent_points: int

    def to_json(self) -> dict[str, Any]:
        bias = [{"parameters": size, "log_steps": value} for size, value in self.bias.items()]
        return shown(self) | {"bias": bias}


def _box(runs: Points) -> tuple[Array, tuple[str, ...]]:
    """Where the coordinates of :func:`log_steps` are looked for, shape ``[2, 7]``, those of terms that the data cannot
    tell apart held; what was dropped. Refuses, in words, where there is no law to fit."""
    sizes, losses = len(np.unique(runs.parameters)), len(np.unique(runs.loss))
    if losses < 2:
        raise ValueError("all points have one loss; give two or more targets")
    if len(np.unique(runs.batch_size)) < 3:
        raise ValueError("fewer than three batch sizes")
    lowest, highest = float(runs.loss.min()), float(runs.loss.max())
    slope = [-math.log(alpha) for alpha in _ALPHA_S]
    low = [-np.inf, slope[1], -np.inf, -np.inf, math.log(1e-6 * lowest), _ALPHA_N[0], 0.0]
    high = [np.inf, slope[0], np.inf, np.inf, math.log(highest), _ALPHA_N[1], lowest * (1 - _SMALLEST_GAP)]
    remarks = []
    if sizes == 1:
        low[4:6] = high[4:6] = [_NOTHING, 1.0]
        remarks.append("the size term is dropped: there is one model size, and E holds its share")
    if sizes == 2 or (sizes == 1 and losses == 2):
        low[6] = high[6] = 0.0
        remarks = ["E is dropped: two model sizes do not tell an irreducible loss from the size term"]
        if sizes == 1:
            remarks = ["the size term and E are dropped: one model size at two losses"]
    box = np.array([low, high])
    free = int((box[0] < box[1]).sum())
    if len(runs.steps) <= free or len(np.unique(runs.group)) < 3:
        raise ValueError(f"{len(runs.steps)} points for {free} parameters; add batch sizes or targets")
    return box, tuple(remarks)


def log_steps(coordinates: Array, runs: Runs, reference: float) -> tuple[Array, Array]:
    """``ln S`` of the law, shape ``[..., n]``, and its derivatives, shape ``[..., n, 7]``, at coordinates ``ln S_c,
    ln(1/alpha_S), ln B*, 1/alpha_B, ln (N_c/reference)^alpha_N, alpha_N, E``; ``reference`` is a model size."""
    part = np.moveaxis(np.asarray(coordinates, dtype=float), -1, 0)[..., None]
    loss, log_size = runs.loss, np.log(runs.parameters / reference)
    slope = np.exp(part[1])
    size = np.exp(part[4] - part[5] * log_size)
    smallest = _SMALLEST_GAP * loss
    gap = loss - size - part[6]
    inside = gap > smallest
    log_gap = np.where(inside, np.log(np.where(inside, gap, 1.0)), np.log(smallest) + gap / smallest - 1.0)
    by_floor = slope / np.where(inside, gap, smallest)
    by_size = by_floor * size
    ratio = part[2] - part[3] * np.log(loss) - np.log(runs.batch_size)
    past = expit(ratio)
    columns = [1.0, -slope * log_gap, past, -past * np.log(loss), by_size, -by_size * log_size, by_floor]
    value = part[0] - slope * log_gap + np.logaddexp(0.0, ratio)
    return value, np.stack(np.broadcast_arrays(*columns, value)[:-1], axis=-1)


def _starts(runs: Runs, box: Array, rng: np.random.Generator) -> Array:
    """Floors between none and nearly all of the lowest loss, exponents over the range that was published."""
    lowest, middle = float(runs.loss.min()), float(np.median(runs.loss))
    sized, irreducible = (box[0] < box[1])[[4, 6]]
    steps = float(np.median(np.log(runs.steps))) - math.log(2.0)
    rows = []
    for _ in range(_STARTS):
        floor = lowest * rng.uniform(0.05, 0.95)
        alpha_s, alpha_b = math.exp(rng.uniform(math.log(0.15), math.log(2.0))), rng.uniform(0.1, 0.6)
        critical = math.log(rng.choice(runs.batch_size))
        share = rng.uniform(0.1, 0.9) if irreducible else 1.0
        rows.append(
            [
                steps + math.log(middle - floor) / alpha_s,
                -math.log(alpha_s),
                critical + math.log(middle) / alpha_b,
                1.0 / alpha_b,
                math.log(floor * share),
                rng.uniform(0.05, 0.6) if sized else 1.0,
                floor * (1.0 - share) if sized else floor,
            ]
        )
    return np.clip(rows, *box)


def fit(runs: Points, config: AnalysisConfig = DEFAULT) -> ThreeTermLaw:
    r"""Weighted least squares in ``ln S`` from several starts, and its bootstrap.

    A resample multiplies the residuals of all entries of the same trials by one normal draw (wild bootstrap, Wu 1986),
    since losses read from one curve err together; residuals are inflated by :math:`\sqrt{m/(m-p)}` for ``m`` trials and
    ``p`` parameters, and by the ratio of Student's t to the normal quantile. The interval is made of percentiles of the
    refits, at most 500.

    Raises:
        ValueError: in words, if the data do not determine a law.
    """
    box, dropped = _box(runs)
    reference = float(np.exp(np.log(runs.parameters).mean()))
    rng, confidence = np.random.default_rng(config.seed), config.confidence
    observed, weights = np.log(runs.steps), runs.seeds / runs.seeds.mean()

    def fitted(logs: Array, start: Array) -> tuple[Array, Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            normal = regression(lambda at: log_steps(at, runs, reference), logs, weights)
            return minimized(normal, start, box, steps=_STEPS)

    found, cost = fitted(np.tile(observed, (_STARTS, 1)), _starts(runs, box, rng))
    best = found[np.nanargmin(cost)]
    left = observed - log_steps(best, runs, reference)[0]
    distinct, trial = np.unique(runs.group, return_inverse=True)
    freedom = max(1, len(distinct) - int((box[0] < box[1]).sum()))
    scale = math.sqrt(len(distinct) / freedom) * widening(freedom, confidence)
    draws = rng.standard_normal((min(config.resamples, _REFITS), len(distinct)))[:, trial]
    moved = observed - left + scale * draws * left
    refits, _ = fitted(moved, np.tile(best, (len(moved), 1)))
    named = _named(np.vstack([best, refits]), box, reference)
    rms = float(np.sqrt(np.average(left**2, weights=runs.seeds)))
    off = f"steps lie {100 * rms:.2g} % (rms) off the law: if seeds scatter less, it is another, and no interval holds"
    bias = {size: runs.parameters == size for size in np.unique(runs.parameters).tolist()}
    return ThreeTermLaw(
        values={name: float(v[0]) if 0 < v[0] < np.inf or name == "E" else None for name, v in named.items()},
        intervals={name: interval(values[1:], confidence) for name, values in named.items()},
        remarks=(*dropped, off) if rms > FAR_OFF else dropped,
        residual_rms=rms,
        bias={size: float(np.average(left[at], weights=runs.seeds[at])) for size, at in bias.items()},
        points=len(observed),
        independent_points=len(distinct),
    )


def _named(rows: Array, box: Array, reference: float) -> dict[str, Array]:
    """Parameters as the papers write them, without those that are held, shape ``[rows]`` each; 0 or infinity where a
    coordinate is at a bound."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        near = _AT_BOUND * (box[1] - box[0])
        ends = np.where(rows <= box[0] + near, -np.inf, np.where(rows >= box[1] - near, np.inf, rows))
        inverse_alpha_b, log_size, alpha_n, floor = rows.T[3:]
        found = {
            "E": np.clip(ends[:, 6], 0.0, floor),
            "N_c": reference * np.exp(log_size / alpha_n),
            "alpha_N": np.maximum(ends[:, 5], 0.0),
            "S_c": np.exp(rows[:, 0]),
            "alpha_S": np.exp(-ends[:, 1]),
            "B_star": np.exp(rows[:, 2]),
            "alpha_B": np.where(inverse_alpha_b > 0, 1.0 / inverse_alpha_b, np.inf),
        }
    free = dict(zip(found, (box[0] < box[1])[[6, 4, 5, 0, 1, 2, 3]], strict=True))
    return {name: values for name, values in found.items() if free[name]}
