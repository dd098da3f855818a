"""Rows of figures of steps against batch size: measured points, and the expected curve with its band."""

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
    """Return rows of the expected curve, with its interval band, and of the hyperbola for comparison."""
    draws = answer.draws
    assert draws is not None
    expected = draws.estimate(batch_sizes)
    band = np.exp(percentiles(draws.drawn(batch_sizes), answer.confidence))
    rows = along("fit", batch_size=batch_sizes, steps=np.exp(expected), low=band[0], high=band[1])
    if answer.hyperbola is not None:
        if_one = np.median(answer.hyperbola.curve.log_steps(batch_sizes), axis=0)
        if np.abs(if_one - expected).max() > _VISIBLE:
            rows += along("hyperbola", batch_size=batch_sizes, steps=np.exp(if_one))
    return rows
