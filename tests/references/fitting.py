"""The fit of ``analysis.fitting`` by a general optimizer over both parameters, one curve at a time."""

from __future__ import annotations

import numpy as np
from scipy.optimize import curve_fit


def fit_by_curve_fit(batch_sizes: np.ndarray, log_steps: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Weighted least squares of ``ln S = ln(a + b/B)``; returns ``(a, b)``."""
    sizes = np.asarray(batch_sizes, dtype=float)

    def model(size: np.ndarray, log_a: float, log_b: float) -> np.ndarray:
        return np.logaddexp(log_a, log_b - np.log(size))

    start = (log_steps.min(), (log_steps + np.log(sizes)).min())
    found, _ = curve_fit(
        model, sizes, log_steps, p0=start, sigma=1 / np.sqrt(weights), xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    return float(np.exp(found[0])), float(np.exp(found[1]))
