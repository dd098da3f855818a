"""The critical batch size that a form of the loss implies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analysis.arrays import UNKNOWN, Array, Quantity
from analysis.config import AnalysisConfig
from analysis.estimate.fitting import interval
from analysis.estimate.fitting.least_squares import fit_curves
from analysis.estimate.forms import LossRuns
from analysis.estimate.laws.loss import LossFit

_ENDLESS = 1e30
_BEYOND = 4.0
"""Factor beyond the measured batch sizes, on either side, up to which batch sizes are considered."""

_STEPS_BEYOND = 100.0
_STEPS = 120
_FEWEST = 4


@dataclass(frozen=True, kw_only=True)
class Implied:
    """Steps to a loss over batch sizes, and the critical batch size, according to a form.

    Attributes:
        form: name of the form.
        parameters: model size N.
        target: the loss to reach.
        batch_sizes: batch sizes of the curve, shape ``[b]``.
        steps: estimated steps, infinite if the loss is not reached; shape ``[b]``.
        low, high: interval of ``steps``, shape ``[b]``.
        critical: batch size that takes twice the fewest steps, those of an infinitely large batch.
        min_steps: the fewest steps.
        fitted: critical batch size of the curve fitted to the steps at the measured batch sizes.
        exponent: exponent of that curve.
        times_beyond: N over the largest measured N, at least 1.
        remark: what is unknown, and why.
    """

    form: str
    parameters: float
    target: float
    batch_sizes: Array = field(repr=False)
    steps: Array = field(repr=False)
    low: Array = field(repr=False)
    high: Array = field(repr=False)
    critical: Quantity
    min_steps: Quantity
    fitted: Quantity
    exponent: Quantity
    times_beyond: float
    remark: str


def implied(fit: LossFit, runs: LossRuns, size: float, target: float, config: AnalysisConfig) -> Implied:
    """Return what ``fit``, fitted to ``runs``, implies for a model of ``size`` parameters at the loss ``target``."""
    measured = np.array([runs.batch_size.min(), runs.batch_size.max()])
    count = max(_FEWEST + 3, int(np.ceil(2 * np.log2(measured[1] / measured[0] * _BEYOND**2))))
    batch_sizes = np.geomspace(measured[0] / _BEYOND, measured[1] * _BEYOND, count)
    steps = _first_steps(fit, runs, size, target, np.append(batch_sizes, _ENDLESS))
    fewest, steps = steps[:, -1], steps[:, :-1]
    with np.errstate(invalid="ignore"):
        critical = _doubling(batch_sizes, steps / fewest[:, None])
    inner = (batch_sizes >= measured[0] * 0.999) & (batch_sizes <= measured[1] * 1.001)
    reached = inner & np.isfinite(steps[0])
    fitted = exponent = UNKNOWN
    if reached.sum() >= _FEWEST and np.isfinite(fewest[0]):
        every = np.isfinite(steps[:, reached]).all(axis=1)
        curve = fit_curves(batch_sizes[reached], np.log(steps[every][:, reached]))
        fitted, exponent = _quantity(curve.critical, config), _quantity(curve.exponent, config)
    whole = np.where(np.isfinite(steps[1:]), steps[1:], np.inf)
    low, high = np.quantile(whole, [0.5 - config.confidence / 2, 0.5 + config.confidence / 2], axis=0, method="nearest")
    return Implied(
        form=fit.form,
        parameters=size,
        target=target,
        batch_sizes=batch_sizes,
        steps=steps[0],
        low=low,
        high=high,
        critical=_quantity(critical, config),
        min_steps=_quantity(fewest, config),
        fitted=fitted,
        exponent=exponent,
        times_beyond=max(1.0, size / float(runs.parameters.max())),
        remark=_remark(fit.form, fewest[0], critical[0], steps[0][inner], batch_sizes[inner], measured),
    )


def _first_steps(fit: LossFit, runs: LossRuns, size: float, target: float, batch_sizes: Array) -> Array:
    """Return the steps at which the loss first reaches the target, shape ``[1 + R, b]``; infinite beyond the search
    range."""
    least = max(1.0, runs.steps.min() / _STEPS_BEYOND)
    grid = np.geomspace(least, runs.steps.max() * _STEPS_BEYOND, _STEPS)
    b, k = (each.ravel() for each in np.meshgrid(batch_sizes, grid, indexing="ij"))
    there = LossRuns(
        parameters=np.full(len(b), size), batch_size=b, steps=k, loss=np.full(len(b), target),
        group=np.zeros(len(b), dtype=int),
    )  # fmt: skip
    above = fit.log_loss(there).reshape(-1, len(batch_sizes), _STEPS) - np.log(target)
    there_yet = above <= 0.0
    first = np.argmax(there_yet, axis=-1)
    rows = np.clip(first, 1, None)[..., None]
    before, after = (np.take_along_axis(above, rows - back, axis=-1)[..., 0] for back in (1, 0))
    with np.errstate(all="ignore"):
        share = before / (before - after)
    log_steps = np.log(grid)[rows[..., 0] - 1] + share * np.log(grid[1] / grid[0])
    known = there_yet.any(axis=-1) & (first > 0)
    return np.where(known, np.exp(np.where(known, log_steps, 0.0)), np.inf)


def _doubling(batch_sizes: Array, ratio: Array) -> Array:
    """Return where the steps are twice the fewest, shape ``[R]``: 0 below and infinite beyond the batch sizes; NaN if
    the fewest are unknown."""
    doublings = np.full(len(ratio), np.nan)
    for row, values in enumerate(ratio):
        known = np.isfinite(values) & (values > 1.0 + 1e-9)
        if not np.isfinite(values).any():
            continue
        x, y = np.log(batch_sizes[known]), np.log(values[known] - 1.0)
        if not len(y) or y[0] < 0.0:
            doublings[row] = 0.0 if len(y) == len(values) or not len(y) else np.exp(x[0])
        elif y[-1] > 0.0:
            doublings[row] = np.inf
        else:
            doublings[row] = np.exp(np.interp(0.0, y[::-1], x[::-1]))
    return doublings


def _quantity(rows: Array, config: AnalysisConfig) -> Quantity:
    """Return the first row with the interval over the others."""
    value = float(rows[0])
    others = np.where(np.isfinite(rows[1:]), rows[1:], np.inf)
    return Quantity(value if np.isfinite(value) and value > 0 else None, interval(others, config.confidence))


def _remark(form: str, fewest: float, critical: float, steps: Array, batch_sizes: Array, measured: Array) -> str:
    if not np.isfinite(fewest):
        return f"{form} does not reach this loss at any batch size within {_STEPS_BEYOND:g} times the steps measured"
    remarks = []
    if np.isinf(steps).any():
        remarks.append(f"the loss is not reached at batch sizes up to {batch_sizes[np.isinf(steps)].max():.4g}")
    if not measured[0] <= critical <= measured[1]:
        remarks.append(f"B_crit is beyond the batch sizes measured, {measured[0]:g} to {measured[1]:g}")
    return "; ".join(remarks)
