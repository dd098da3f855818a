"""The type of every array of numbers here, and the interval of many of them."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def percentiles(values: Array, confidence: float) -> Array:
    """Ends of the interval that holds the middle ``confidence`` of the rows of ``values`` ``[R, ...]``, shape
    ``[2, ...]``; NaN without rows."""
    if not len(values):
        return np.full((2, *values.shape[1:]), np.nan)
    return np.asarray(np.quantile(values, [0.5 - confidence / 2, 0.5 + confidence / 2], axis=0))
