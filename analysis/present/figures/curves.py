"""Rows of figures of steps against batch size: measured points, and the fitted curve with its band."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.arrays import Array, percentiles
from analysis.estimate.result import Answer
from analysis.estimate.studies import Point
from analysis.present.figures import along

_VISIBLE = 0.05
"""Difference in ln steps that is about the width of a line."""


def measured(point: Point) -> dict[str, Any]:
    """Return the row of a batch size that reached the target, with the range over seeds."""
    ends = {"low": min(point.steps_per_seed), "high": max(point.steps_per_seed)}
    return {"kind": "point", "batch_size": point.batch_size, "steps": point.steps_to_target} | ends


def fitted(answer: Answer, batch_sizes: Array) -> list[dict[str, Any]]:
    """Return rows of the fitted curve, with its interval band if there is one, and of the hyperbola for comparison."""
    fit = answer.fit
    assert fit is not None
    log_steps, if_one = fit.estimate.log_steps(batch_sizes), fit.hyperbola.log_steps(batch_sizes)
    resampled = (
        fit.resampled.log_steps(batch_sizes) if len(fit.resampled_log_steps) else np.empty((0, len(batch_sizes)))
    )
    band = np.exp(percentiles(resampled, answer.confidence))
    rows = along("fit", batch_size=batch_sizes, steps=np.exp(log_steps), low=band[0], high=band[1])
    if answer.hyperbola is not None and np.abs(if_one - log_steps).max() > _VISIBLE:
        rows += along("hyperbola", batch_size=batch_sizes, steps=np.exp(if_one))
    return rows
