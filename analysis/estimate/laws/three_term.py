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
from dataclasses import dataclass, field

import numpy as np
from scipy.special import expit, ndtri, stdtrit

from analysis.arrays import Array
from analysis.estimate.fitting import interval

_STARTS = 12
_SMALLEST_GAP = 1e-4
"""Share of the loss; closer to its floor the law is continued by a straight line, so that every start is defined."""

_ALPHA_S, _ALPHA_N = (0.02, 20.0), (1e-3, 5.0)
"""Where the exponents are looked for; an estimate at an end is not determined."""

_AT_BOUND = 1e-3
_REFIT_STEPS = 30
_CONVERGED = 1e-6
_REFITS = 500

Ends = tuple[float | None, float | None]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What the law is fitted to, one entry per model, loss and batch size; shape ``[n]`` each.

    Attributes:
        parameters: N.
        loss: the target, positive and falling with training.
        batch_size: B.
        steps: S, optimizer updates to the loss.
        seeds: weight.
        trials: number of the trials behind it: one number for all losses read from the same curves.
    """

    parameters: Array
    loss: Array
    batch_size: Array
    steps: Array
    seeds: Array
    trials: Array


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Which terms the data can tell apart.

    Attributes:
        irreducible: ``E``.
        size: ``(N_c/N)^alpha_N``.
        remarks: what was dropped, and why.
    """

    irreducible: bool
    size: bool
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ThreeTermLaw:
    """The fitted law.

    Attributes:
        values: by name: ``E`` (loss), ``N_c`` (parameters), ``alpha_N``, ``S_c`` (steps), ``alpha_S``, ``B_star``
            (examples), ``alpha_B``; without those of dropped terms. ``None`` where the data do not determine it.
        intervals: of the values; an open end is ``None``.
        terms: which were fitted.
        residual_rms: of ``ln S``.
        bias: by model size, mean residual of ``ln S``: what this size needs more than the law says.
        points: number of entries.
        trials: number of independent ones among them.
        confidence: of the intervals.
        coordinates: the fit in the coordinates of :func:`log_steps`.
        reference: size at which the coordinates state the second term.
    """

    values: dict[str, float | None]
    intervals: dict[str, Ends]
    terms: Terms
    residual_rms: float
    bias: dict[float, float]
    points: int
    trials: int
    confidence: float
    coordinates: Array = field(repr=False)
    reference: float = field(repr=False)


def identifiable(runs: Runs) -> Terms:
    """Which terms to fit.

    Raises:
        ValueError: in words, if there is no law to fit.
    """
    sizes, losses = len(np.unique(runs.parameters)), len(np.unique(runs.loss))
    if losses < 2:
        raise ValueError("all points have one loss; give two or more targets")
    if len(np.unique(runs.batch_size)) < 3:
        raise ValueError("fewer than three batch sizes")
    if sizes >= 3:
        terms = Terms(irreducible=True, size=True, remarks=())
    elif sizes == 2:
        remark = "E is dropped: two model sizes do not tell an irreducible loss from the size term"
        terms = Terms(irreducible=False, size=True, remarks=(remark,))
    elif losses >= 3:
        remark = "the size term is dropped: there is one model size, and E holds its share"
        terms = Terms(irreducible=True, size=False, remarks=(remark,))
    else:
        remark = "the size term and E are dropped: one model size at two losses"
        terms = Terms(irreducible=False, size=False, remarks=(remark,))
    if len(runs.steps) <= len(_names(terms)) or len(np.unique(runs.trials)) < 3:
        raise ValueError(f"{len(runs.steps)} points for {len(_names(terms))} parameters; add batch sizes or targets")
    return terms


def _names(terms: Terms) -> list[str]:
    size = ["log_size_term", "alpha_N"] if terms.size else []
    return ["log_S_c", "log_inverse_alpha_S", "log_B_star", "inverse_alpha_B", *size, *["E"] * terms.irreducible]


def log_steps(coordinates: Array, runs: Runs, terms: Terms, reference: float) -> Array:
    """``ln S`` of the law.

    Args:
        coordinates: ``ln S_c, ln(1/alpha_S), ln B*, 1/alpha_B``, then where fitted ``ln (N_c/reference)^alpha_N,
            alpha_N``, then where fitted ``E``; shape ``[..., p]``.
        runs: where.
        terms: which are fitted.
        reference: a model size.

    Returns:
        Shape ``[..., n]``.
    """
    return _model(coordinates, runs, terms, reference)[0]


def _model(coordinates: Array, runs: Runs, terms: Terms, reference: float) -> tuple[Array, Array]:
    """``ln S`` of shape ``[..., n]`` and its derivatives of shape ``[..., n, p]``."""
    part = np.moveaxis(np.asarray(coordinates, dtype=float), -1, 0)[..., None]
    loss, log_size = runs.loss, np.log(runs.parameters / reference)
    slope = np.exp(part[1])
    size = np.exp(part[4] - part[5] * log_size) if terms.size else np.zeros(1)
    floor = size + (part[-1] if terms.irreducible else 0.0)
    smallest = _SMALLEST_GAP * loss
    gap = loss - floor
    inside = gap > smallest
    log_gap = np.where(inside, np.log(np.where(inside, gap, 1.0)), np.log(smallest) + gap / smallest - 1.0)
    by_gap = 1.0 / np.where(inside, gap, smallest)
    ratio = part[2] - part[3] * np.log(loss) - np.log(runs.batch_size)
    value = part[0] - slope * log_gap + np.logaddexp(0.0, ratio)
    past = expit(ratio)
    columns = [np.ones_like(value), -slope * log_gap, past, -past * np.log(loss)]
    if terms.size:
        columns += [slope * by_gap * size, -slope * by_gap * size * log_size]
    if terms.irreducible:
        columns.append(slope * by_gap * np.ones_like(value))
    return value, np.stack(np.broadcast_arrays(*columns), axis=-1)


def _bounds(runs: Runs, terms: Terms) -> tuple[Array, Array]:
    lowest = float(runs.loss.min())
    low = [-np.inf, -math.log(_ALPHA_S[1]), -np.inf, -np.inf]
    high = [np.inf, -math.log(_ALPHA_S[0]), np.inf, np.inf]
    if terms.size:
        low, high = [*low, math.log(1e-6 * lowest), _ALPHA_N[0]], [*high, math.log(float(runs.loss.max())), _ALPHA_N[1]]
    if terms.irreducible:
        low, high = [*low, 0.0], [*high, lowest * (1 - _SMALLEST_GAP)]
    return np.array(low), np.array(high)


def _starts(runs: Runs, terms: Terms, rng: np.random.Generator) -> Array:
    """Floors between none and nearly all of the lowest loss, exponents over the range that was published."""
    lowest, middle = float(runs.loss.min()), float(np.median(runs.loss))
    rows = []
    for _ in range(_STARTS):
        floor = lowest * rng.uniform(0.05, 0.95)
        alpha_s, alpha_b = math.exp(rng.uniform(math.log(0.15), math.log(2.0))), rng.uniform(0.1, 0.6)
        critical = math.log(rng.choice(runs.batch_size))
        steps = float(np.median(np.log(runs.steps))) - math.log(2.0)
        row = [
            steps + math.log(middle - floor) / alpha_s,
            -math.log(alpha_s),
            critical + math.log(middle) / alpha_b,
            1.0 / alpha_b,
        ]
        share = rng.uniform(0.1, 0.9) if terms.irreducible else 1.0
        if terms.size:
            row += [math.log(floor * share), rng.uniform(0.05, 0.6)]
        if terms.irreducible:
            row.append(floor * (1.0 - share) if terms.size else floor)
        rows.append(row)
    return np.array(rows)


def fit(runs: Runs, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> ThreeTermLaw:
    r"""Weighted least squares in ``ln S`` from several starts, and its bootstrap.

    A resample multiplies the residuals of all entries of the same trials by one normal draw (wild bootstrap, Wu 1986),
    since losses read from one curve err together; residuals are inflated by :math:`\sqrt{m/(m-p)}` for ``m`` trials and
    ``p`` parameters, and by the ratio of Student's t to the normal quantile. The interval is made of percentiles of the
    refits, at most 500.

    Args:
        runs: at least two losses and three batch sizes.
        confidence: of the intervals.
        resamples: of the bootstrap.
        seed: of starts and bootstrap.

    Raises:
        ValueError: in words, if the data do not determine a law.
    """
    from scipy.optimize import least_squares

    terms = identifiable(runs)
    reference = float(np.exp(np.log(runs.parameters).mean()))
    rng = np.random.default_rng(seed)
    low, high = _bounds(runs, terms)
    observed, root = np.log(runs.steps), np.sqrt(runs.seeds / runs.seeds.mean())

    def residual(coordinates: Array) -> Array:
        return root * (log_steps(coordinates, runs, terms, reference) - observed)

    def jacobian(coordinates: Array) -> Array:
        return root[:, None] * _model(coordinates, runs, terms, reference)[1]

    margin = 1e-9 * np.where(np.isfinite(high - low), high - low, 1.0)
    found = [
        least_squares(
            residual, np.clip(start, low + margin, high - margin), jac=jacobian, bounds=(low, high), x_scale="jac",
            max_nfev=400,
        )
        for start in _starts(runs, terms, rng)
    ]  # fmt: skip
    best = min(found, key=lambda result: result.cost).x
    left = observed - log_steps(best, runs, terms, reference)
    distinct, trial = np.unique(runs.trials, return_inverse=True)
    freedom = max(1, len(distinct) - len(best))
    tail = 0.5 + confidence / 2
    widening = math.sqrt(len(distinct) / freedom) * stdtrit(freedom, tail) / ndtri(tail)
    draws = rng.standard_normal((min(resamples, _REFITS), len(distinct)))[:, trial]
    moved = observed - left + widening * draws * left
    refits = _refit(best, moved, root, runs, terms, reference, low, high)
    values, ends = _named(best, refits, terms, reference, low, high, confidence)
    sizes = np.unique(runs.parameters)
    return ThreeTermLaw(
        values=values,
        intervals=ends,
        terms=terms,
        residual_rms=float(np.sqrt(np.average(left**2, weights=runs.seeds))),
        bias={
            float(size): float(np.average(left[at], weights=runs.seeds[at]))
            for size, at in ((size, runs.parameters == size) for size in sizes)
        },
        points=len(observed),
        trials=len(distinct),
        confidence=confidence,
        coordinates=best,
        reference=reference,
    )


def _refit(
    start: Array, observed: Array, root: Array, runs: Runs, terms: Terms, reference: float, low: Array, high: Array
) -> Array:
    """Levenberg-Marquardt from the same start for every row of ``observed`` at once, steps cut at the bounds."""
    at = np.repeat(start[None], len(observed), axis=0)
    damping = np.full(len(observed), 1e-3)
    value, slopes = _model(at, runs, terms, reference)
    cost = np.sum((root * (value - observed)) ** 2, axis=1)
    for _ in range(_REFIT_STEPS):
        weighted = root[:, None] * slopes
        normal = np.einsum("rni,rnj->rij", weighted, weighted)
        gradient = np.einsum("rni,rn->ri", weighted, root * (value - observed))
        scale = np.maximum(np.einsum("rii->ri", normal), 1e-12)
        damped = normal + damping[:, None, None] * scale[:, :, None] * np.eye(len(start))
        step = np.linalg.solve(damped, gradient[..., None])[..., 0]
        tried = np.clip(at - step, low, high)
        tried_value, tried_slopes = _model(tried, runs, terms, reference)
        tried_cost = np.sum((root * (tried_value - observed)) ** 2, axis=1)
        better = tried_cost < cost
        at = np.where(better[:, None], tried, at)
        value = np.where(better[:, None], tried_value, value)
        slopes = np.where(better[:, None, None], tried_slopes, slopes)
        cost = np.where(better, tried_cost, cost)
        damping = np.clip(np.where(better, damping / 5.0, damping * 4.0), 1e-9, 1e9)
        if np.abs(step / (1.0 + np.abs(at))).max() < _CONVERGED:
            break
    return at


def _named(
    best: Array, refits: Array, terms: Terms, reference: float, low: Array, high: Array, confidence: float
) -> tuple[dict[str, float | None], dict[str, Ends]]:
    """Parameters as the papers write them; one at a bound has no value, and its interval is open on this side."""
    names = _names(terms)
    finite = np.where(np.isfinite(high - low), high - low, np.inf)

    def ends_open(name: str, values: Array) -> tuple[Array, Array]:
        at = names.index(name)
        return values[:, at] <= low[at] + _AT_BOUND * finite[at], values[:, at] >= high[at] - _AT_BOUND * finite[at]

    both = np.vstack([best, refits])
    columns = dict(zip(names, both.T, strict=True))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        named = {
            "S_c": np.exp(columns["log_S_c"]),
            "alpha_S": np.exp(-columns["log_inverse_alpha_S"]),
            "B_star": np.exp(columns["log_B_star"]),
            "alpha_B": np.where(columns["inverse_alpha_B"] > 0, 1.0 / columns["inverse_alpha_B"], np.inf),
        }
        at_low, at_high = ends_open("log_inverse_alpha_S", both)
        named["alpha_S"] = np.where(at_low, np.inf, np.where(at_high, 0.0, named["alpha_S"]))
        if terms.size:
            at_low, at_high = ends_open("alpha_N", both)
            named["alpha_N"] = np.where(at_low, 0.0, np.where(at_high, np.inf, columns["alpha_N"]))
            named["N_c"] = reference * np.exp(columns["log_size_term"] / columns["alpha_N"])
        if terms.irreducible:
            named["E"] = np.where(ends_open("E", both)[0], 0.0, columns["E"])
    values = {name: float(column[0]) if 0 < column[0] < np.inf else None for name, column in named.items()}
    if terms.irreducible:
        values["E"] = float(named["E"][0])
    return values, {name: interval(column[1:], confidence) for name, column in named.items()}
