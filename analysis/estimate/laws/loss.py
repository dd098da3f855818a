"""Fit a form of the loss to runs, with its bootstrap, and predict the loss of other runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import nnls

from analysis.arrays import OPEN, Array, Interval, percentiles
from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.fitting import interval
from analysis.estimate.fitting.form_fits import widening
from analysis.estimate.fitting.least_squares import minimized, regression
from analysis.estimate.forms import FORMS, LossForm, LossRuns, Reference
from analysis.phrases import plural

_SHAPES = 1200
"""Number of shape parameters drawn at random, each with the best sizes of the terms; the search starts from the
best."""

_STARTS, _KEPT = 48, 8
"""Number of starting points from which a few steps are taken, and number of those that are followed to the end."""

_FIRST_STEPS, _STEPS, _REFIT_STEPS = 20, 200, 60
_REFITS = 400
_BLOCK = 40
_SMALLEST_GAP = 1e-4
"""Smallest distance of the floor from the lowest loss, as a fraction of it."""

_AT_END = 1e-3
_ALIKE = 1e-7
"""A direction of the parameters (each in units of its own effect) that changes the losses by less than this fraction of
the most effective one is not determined."""

_SHARE = 0.1
"""A parameter with at least this component in an undetermined direction, or that differs by more between equally good
minima, is not determined."""

_SAME = 1e-6
"""Difference of logarithms of losses below which they count as equal."""

_EXACT = 1e-14
"""Mean squared residual below which a fit counts as exact."""

_MOST_LEVERAGE = 0.99

_LARGEST = 30.0
"""Logarithm of a loss, relative to the measured ones, at which predictions are clipped."""

_NOUNS = {"parameters": "model size", "batch_size": "batch size", "steps": "step count", "data": "data budget"}
_MOST = 3.0
"""Distance from the estimate, in logarithms, at which refits start along directions that the runs hardly determine."""


@dataclass(frozen=True, kw_only=True)
class LossFit:
    """A fitted form of the loss.

    Attributes:
        form: name of the form.
        values: parameters by symbol; ``None`` if the runs do not determine it.
        intervals: intervals of the values; an open end is ``None``.
        loose: symbols of the parameters that the runs cannot separate.
        residual_rms: root mean square residual of ``ln L``.
        runs, groups: number of rows, and number of groups of rows whose errors are independent.
        deviation: standard deviation of ``ln L`` of a row around the form.
        freedom: degrees of freedom of ``deviation``.
        reference: the point to which sizes of terms refer.
        at, refits: coordinates of the estimate ``[p]``, and of the resamples ``[R, p]``.
    """

    form: str
    values: dict[str, float | None]
    intervals: dict[str, Interval]
    loose: tuple[str, ...]
    residual_rms: float
    runs: int
    groups: int
    deviation: float
    freedom: int
    reference: Reference = field(repr=False)
    at: Array = field(repr=False)
    refits: Array = field(repr=False)

    def log_loss(self, runs: LossRuns) -> Array:
        """Return ``ln L`` at some runs, shape ``[1 + R, n]``: first of the estimate, then of the refits."""
        form, rows = FORMS[self.form], np.vstack([self.at, self.refits])
        blocks = [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]
        with np.errstate(all="ignore"):
            log_losses = np.log(np.concatenate([form.loss(block, runs, self.reference)[0] for block in blocks]))
        middle = math.log(self.reference.loss)
        return np.clip(np.nan_to_num(log_losses, nan=np.inf, neginf=-np.inf), middle - _LARGEST, middle + _LARGEST)

    def predicted(
        self, runs: LossRuns, config: AnalysisConfig = DEFAULT, error: float = 0.0
    ) -> tuple[Array, Array, Array]:
        """Return ``ln L`` of new runs and the ends of its interval, shape ``[n]`` each.

        The interval includes the uncertainty of the fit and the scatter of runs around the form, at least ``error``.
        """
        log_losses, rng = self.log_loss(runs), np.random.default_rng(config.seed)
        scatter = max(error, self.deviation * widening(self.freedom, config.confidence))
        noise = scatter * rng.standard_normal(log_losses[1:].shape)
        low, high = percentiles(log_losses[1:] + noise, config.confidence)
        return log_losses[0], low, high


def refusal(form: LossForm, runs: LossRuns) -> str:
    """Return why the runs cannot determine a form, naming the parameters; empty if they may."""
    if np.ptp(np.log(runs.loss)) < _SAME:
        return "every run ends at the same loss"
    for name, (least, symbols) in form.distinct.items():
        count = len(np.unique(getattr(runs, name)))
        if count < least:
            return f"{symbols} cannot be separated with {plural(count, _NOUNS[name])}; it takes {least}"
    groups, needed = len(np.unique(runs.group)), len(form.symbols) + 1
    if groups < needed:
        return f"{groups} independent runs for {needed - 1} parameters; it takes {needed}"
    return ""


def fit(name: str, runs: LossRuns, config: AnalysisConfig = DEFAULT) -> LossFit:
    r"""Fit a form by weighted least squares in ``ln L``.

    Shape parameters are drawn at random within their bounds, each with the best floor and sizes (a form is linear in
    these); damped Gauss-Newton steps continue from the best ones. A resample adds to the fit the residuals times one
    normal draw per group (wild bootstrap, Wu 1986), each residual divided by :math:`1 - h` with its leverage h (the
    jackknife of MacKinnon and White 1985), all widened by Student's t. Refits start at any of the minima that fit as
    well as the best one, and away from it along directions that the runs hardly determine, so that the intervals cover
    these. There are at most 400 resamples.
    Raises:
        ValueError: if these runs cannot determine some parameters; the message names them.
    """
    form = FORMS[name]
    if refused := refusal(form, runs):
        raise ValueError(refused)
    reference, observed, weights = Reference.of(runs), np.log(runs.loss), np.asarray(runs.weight / np.mean(runs.weight))
    rng, confidence = np.random.default_rng(config.seed), config.confidence
    highest, wide = float(runs.loss.min()) * (1.0 - _SMALLEST_GAP), float(np.abs(observed).max()) + 30.0
    box = np.hstack([[[0.0, -wide, -wide], [highest, wide, wide]], form.shapes])

    def value(at: Array) -> tuple[Array, Array]:
        loss, slopes = form.loss(at, runs, reference)
        return np.log(loss), slopes / loss[..., None]

    def fitted(logs: Array, start: Array, steps: int = _STEPS) -> tuple[Array, Array]:
        candidates = []
        for first in range(0, len(start), _BLOCK):
            block = slice(first, first + _BLOCK)
            candidates.append(minimized(regression(value, logs[block], weights), start[block], box, steps=steps))
        theta, cost = zip(*candidates, strict=True)
        return np.concatenate(theta), np.concatenate(cost)

    with np.errstate(all="ignore"):
        begun = _starts(form, runs, reference, box, rng)
        tried, cost = fitted(np.tile(observed, (len(begun), 1)), begun, _FIRST_STEPS)
        kept = tried[np.argsort(cost)[:_KEPT]]  # a NaN comes last
        tried, cost = fitted(np.tile(observed, (len(kept), 1)), kept)
        at, alike = tried[np.nanargmin(cost)], tried[cost <= np.nanmin(cost) * (1.0 + _ALIKE) + _EXACT * len(observed)]
        (logs,), (slopes,) = value(at[None])
    left = observed - logs
    slopes = np.sqrt(np.reshape(weights, (-1, 1))) * slopes
    count, leverage, root, idle, tied = _determined(slopes, (at > box[0]) & (at < box[1]))
    groups, group = np.unique(runs.group, return_inverse=True)
    freedom = max(1, len(groups) - count)
    squares = weights * left**2
    deviation = math.sqrt(squares.sum() / freedom * len(groups) / len(left))
    draws = widening(freedom, confidence) * rng.standard_normal((min(config.resamples, _REFITS), len(groups)))
    moved = logs + draws[:, group] * left / (1.0 - leverage)
    away = deviation * rng.standard_normal((len(draws), root.shape[1])) @ root.T
    away += _MOST * rng.standard_normal((len(draws), idle.shape[1])) @ idle.T
    with np.errstate(all="ignore"):
        begun = alike[rng.integers(len(alike), size=len(draws))]
        refits, _ = fitted(moved, np.clip(begun + np.clip(away, -_MOST, _MOST), *box), _REFIT_STEPS)
    tied |= np.ptp(alike, axis=0) > _SHARE
    loose = tuple(symbol for symbol, one in zip(form.symbols, tied, strict=True) if one)
    values, intervals = _named(form, np.vstack([at, refits]), box, reference, confidence)
    return LossFit(
        form=name,
        values={symbol: None if symbol in loose else value for symbol, value in values.items()},
        intervals={symbol: OPEN if symbol in loose else ends for symbol, ends in intervals.items()},
        loose=loose,
        residual_rms=float(np.sqrt(squares.mean())),
        runs=len(left),
        groups=len(groups),
        deviation=deviation,
        freedom=freedom,
        reference=reference,
        at=at,
        refits=refits,
    )


def _starts(form: LossForm, runs: LossRuns, reference: Reference, box: Array, rng: np.random.Generator) -> Array:
    """Return the best of many random shapes, each with the best floor and sizes, shape ``[_STARTS, p]``."""
    rows = []
    for shapes in np.array_split(
        rng.uniform(form.shapes[0], form.shapes[1], (_SHAPES, form.shapes.shape[1])), _SHAPES // _BLOCK
    ):
        logs = np.broadcast_to(np.log(runs.loss), (len(shapes), len(runs.loss)))
        form_terms = form.terms(shapes, runs, reference, logs)
        for shape, f, g in zip(shapes, form_terms.f, form_terms.g, strict=True):
            scale = np.array([1.0, f.max(), g.max()])
            if not (np.isfinite(scale).all() and (scale > 0).all()):
                continue
            terms = np.column_stack([np.ones_like(f), f, g]) / scale / runs.loss[:, None]
            sizes, cost = nnls(terms, np.ones_like(f))
            logs_of_sizes = np.log(np.maximum(sizes[1:], _SMALLEST_GAP * runs.loss.min()) / scale[1:])
            rows.append((cost, [sizes[0], *logs_of_sizes, *shape]))
    best = sorted(rows, key=lambda row: row[0])[:_STARTS]
    return np.clip([row for _, row in best], *box)


def _determined(slopes: Array, free: np.ndarray) -> tuple[int, Array, Array, Array, np.ndarray]:
    """Analyse which directions of the coordinates the runs determine, to first order.

    Args:
        slopes: derivatives of ``ln L`` with respect to the coordinates, shape ``[n, p]``.
        free: mask of the coordinates that are not at a bound, shape ``[p]``.

    Returns:
        Number of determined directions; leverage of every run ``[n]``; root of the covariance for unit deviation along
        the determined directions ``[p, count]``; directions that leave every loss unchanged, scaled to a largest entry
        of 1 ``[p, k]``; mask of the coordinates that change along such a direction ``[p]``.
    """
    lengths = np.where(free, np.sqrt((slopes**2).sum(axis=0)), 0.0)
    moves = lengths > 0
    left, singular, right = np.linalg.svd(slopes[:, moves] / lengths[moves], full_matrices=False)
    known = singular > _ALIKE * singular[0]
    scaled = np.zeros((len(free), len(singular)))
    scaled[moves] = right.T / lengths[moves, None]
    idle = scaled[:, ~known]
    tied = free & ~moves
    tied[moves] = (np.abs(right[~known]) > _SHARE).any(axis=0)
    leverage = np.minimum((left[:, known] ** 2).sum(axis=1), _MOST_LEVERAGE)
    idle = idle / np.abs(idle).max(axis=0, initial=1e-300)
    return int(known.sum()), leverage, scaled[:, known] / singular[known], idle, tied


def _named(
    form: LossForm, rows: Array, box: Array, reference: Reference, confidence: float
) -> tuple[dict[str, float | None], dict[str, Interval]]:
    """Return the parameters of the first row, and their intervals over the others; open where a coordinate is at a
    bound."""
    near = _AT_END * (box[1] - box[0])
    low, high = rows <= box[0] + near, rows >= box[1] - near
    with np.errstate(all="ignore"):
        parameters = form.named(rows, reference)
    values: dict[str, float | None] = {}
    intervals: dict[str, Interval] = {}
    for index, symbol in enumerate(form.symbols):
        spread = np.where(high[:, index], np.inf, np.where(low[:, index], 0.0, parameters[symbol]))
        values[symbol] = float(spread[0]) if np.isfinite(spread[0]) and (spread[0] > 0 or symbol == "E") else None
        intervals[symbol] = interval(spread[1:], confidence)
    return values, intervals
