"""Test how well a form fitted to the smaller runs predicts the larger ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.arrays import OPEN, Array, Interval, percentiles
from analysis.config import AnalysisConfig
from analysis.estimate.forms import LossRuns
from analysis.estimate.laws.loss import fit
from cbs.errors import ConfigError

AXES = {
    "N": "parameters",
    "B": "batch size",
    "K": "steps",
    "D": "data B K",
    "C": "compute 6 N B K",
}
"""Axes along which runs may be left out."""

_SHARE = 0.25
"""Approximate fraction of the rows that are left out, unless a start is given."""

_FEWEST = 4
"""Number of groups below which the error on those left out has no interval."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """Result of one form on the runs that were left out.

    Attributes:
        form: name of the form.
        refused: why it could not be fitted to the other runs; empty if it was.
        error: root mean square of ``ln(predicted/measured)``; ``None`` without a fit.
        interval: interval of ``error``, over the groups that were left out; open with fewer than four.
        bias: mean of ``ln(predicted/measured)``: positive if the predicted loss is too high.
        inside: number of rows within their own prediction interval.
        log_ratio: ``ln(predicted/measured)`` of every run of the table, shape ``[n]``.
    """

    form: str
    refused: str = ""
    error: float | None = None
    interval: Interval = OPEN
    bias: float | None = None
    inside: int | None = None
    log_ratio: Array | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Runs left out of the fit to test extrapolation.

    Attributes:
        axis: one of :data:`AXES`.
        start: smallest value on the axis of the runs left out.
        left_out: mask of the runs left out, shape ``[n]``.
        beyond: ratio of the largest value left out to the largest fitted, on the axis.
        entries: results of the forms.
    """

    axis: str
    start: float
    left_out: np.ndarray
    beyond: float
    entries: tuple[Held, ...]


def along(runs: LossRuns, axis: str) -> Array:
    """Return the values of the runs on one of :data:`AXES`, shape ``[n]``."""
    given = {"N": runs.parameters, "B": runs.batch_size, "K": runs.steps, "D": runs.data}
    return given[axis] if axis in given else 6.0 * runs.parameters * runs.data


def parsed(text: str) -> tuple[str, float | None]:
    """Parse ``N`` or ``D:1e9`` into axis and start; raise ``ConfigError`` for anything else."""
    axis, colon, start = text.partition(":")
    try:
        value = float(start) if colon else None
    except ValueError:
        value = math.nan
    if axis not in AXES or (value is not None and not 0.0 < value < math.inf):
        raise ConfigError(f"--holdout {text}: it is one of {', '.join(AXES)}, or with a start such as D:1e9")
    return axis, value


def holdout(
    runs: LossRuns, axis: str, start: float | None, forms: Sequence[str], config: AnalysisConfig
) -> Holdout | None:
    """Fit every form to the runs below ``start`` on the axis (``None`` to leave out about the largest quarter of the
    rows), and compare its predictions with the others; ``None`` if one side is empty."""
    where = along(runs, axis)
    if start is None:
        distinct = np.unique(where)
        larger = [float(value) for value in distinct[1:] if (where >= value).mean() <= _SHARE]
        start = min(larger, default=float(distinct[-1]))
    left_out = where >= start * (1.0 - 1e-9)
    if not left_out.any() or left_out.all():
        return None
    return Holdout(
        axis=axis,
        start=start,
        left_out=left_out,
        beyond=float(where.max() / where[~left_out].max()),
        entries=tuple(_held(name, runs, left_out, config) for name in forms),
    )


def _held(name: str, runs: LossRuns, left_out: np.ndarray, config: AnalysisConfig) -> Held:
    try:
        fit_of_rest = fit(name, runs.of(~left_out), config)
    except ValueError as error:
        return Held(form=name, refused=str(error))
    predicted, low, high = fit_of_rest.predicted(runs, config)
    measured = np.log(runs.loss)
    ratio, inside = predicted - measured, (low <= measured) & (measured <= high)
    off, group = ratio[left_out], np.unique(runs.group[left_out], return_inverse=True)[1]
    return Held(
        form=name,
        error=float(np.sqrt((off**2).mean())),
        interval=_of_groups(off, group, config),
        bias=float(off.mean()),
        inside=int(inside[left_out].sum()),
        log_ratio=ratio,
    )


def _of_groups(error: Array, group: np.ndarray, config: AnalysisConfig) -> Interval:
    """Return the interval of the root mean square, with groups drawn with replacement."""
    count = int(group.max()) + 1
    if count < _FEWEST:
        return OPEN
    squares, sizes = np.bincount(group, error**2), np.bincount(group).astype(float)
    drawn = np.random.default_rng(config.seed).integers(count, size=(config.resamples, count))
    low, high = percentiles(np.sqrt(squares[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)), config.confidence)
    return float(low), float(high)
