"""The curve of one run: whole steps, increasing, with what had to be done to get there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.read.cells import LARGEST
from analysis.read.importers.base import Run
from analysis.read.importers.settings import Settings
from cbs.errors import DataError

ROUNDING = 0.01
"""Most that a point may move on its axis when examples or tokens become whole steps: the resolution of log steps that
evaluations every 4 % have is coarser."""

_EXACT = 1e-9


@dataclass(frozen=True)
class Curve:
    """A cleaned curve.

    Attributes:
        steps: optimizer updates, increasing, whole.
        values: the metric; not finite where the run diverged.
        duplicates: rows dropped because they say the same twice.
        rounded: points that moved to the nearest whole step.
    """

    steps: Array
    values: Array
    duplicates: int = 0
    rounded: int = 0


def clean(run: Run, batch_size: int, settings: Settings) -> Curve:
    """Steps in order, each once.

    Args:
        run: as read.
        batch_size: examples per update.
        settings: for the tokens of an example.

    Raises:
        DataError: naming run and step, if a step is negative, not whole, or there twice with two values.
    """
    steps, rounded = _steps(run, batch_size, settings)
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], np.asarray(run.values, dtype=float)[order]
    same_step = steps[1:] == steps[:-1]
    same_value = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
    if (same_step & ~same_value).any():
        at = int(np.flatnonzero(same_step & ~same_value)[0])
        raise DataError(
            f"run {run.name} ({run.place}) has two values at step {int(steps[at])}: {values[at]:g} and "
            f"{values[at + 1]:g}; remove one, or tell the runs apart if these are two"
        )
    keep = np.append(True, ~same_step)[: len(steps)]
    return Curve(steps[keep], values[keep], int(same_step.sum()), rounded)


def _steps(run: Run, batch_size: int, settings: Settings) -> tuple[Array, int]:
    axis = np.asarray(run.axis, dtype=float)
    bad = ~((axis >= 0) & (axis <= LARGEST))
    if bad.any():
        raise DataError(
            f"run {run.name} ({run.place}): {axis[bad][0]:g} is not a number of "
            f"{'steps' if run.unit == 'step' else run.unit}; correct or remove the row"
        )
    per_step = 1.0
    if run.unit == "examples":
        per_step = float(batch_size)
    elif run.unit == "tokens":
        if settings.tokens_per_example is None:
            raise DataError(f"run {run.name} is drawn against tokens: give --tokens-per-example N")
        per_step = float(batch_size * settings.tokens_per_example)
    exact = axis / per_step
    steps = np.round(exact)
    moved = np.abs(steps - exact)
    allowed = ROUNDING * exact if run.unit != "step" else np.zeros_like(exact)
    wrong = moved > np.maximum(allowed, _EXACT * exact)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        what = "step" if run.unit == "step" else f"{run.unit} at {per_step:g} per step"
        raise DataError(
            f"run {run.name} ({run.place}): {axis[at]:g} {what} is not a whole number of steps ({exact[at]:g}); "
            "check the batch size and the unit of the axis, or remove the row"
        )
    return steps, int((moved > _EXACT * exact).sum())
