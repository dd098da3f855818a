"""The slow twin of the interpolated critical batch size: a quadratic program with its rules written out."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq, minimize


def convex(logs: np.ndarray, log_steps: np.ndarray) -> np.ndarray:
    """The nearest heights ``[M]`` that fall, ever more slowly, by a general solver."""
    rules = [{"type": "ineq", "fun": lambda f, at=at: f[at] - f[at + 1]} for at in range(len(logs) - 1)]
    for at in range(1, len(logs) - 1):
        left, right = logs[at] - logs[at - 1], logs[at + 1] - logs[at]
        rules.append(
            {
                "type": "ineq",
                "fun": lambda f, at=at, left=left, right=right: (
                    (f[at - 1] - f[at]) / left - (f[at] - f[at + 1]) / right
                ),
            }
        )
    start = np.linspace(log_steps.max(), log_steps.min(), len(logs))
    found = minimize(
        lambda f: ((f - log_steps) ** 2).sum(), start, jac=lambda f: 2 * (f - log_steps), constraints=rules,
        method="SLSQP", options={"ftol": 1e-14, "maxiter": 1000},
    )  # fmt: skip
    assert found.success
    return found.x


def critical(logs: np.ndarray, log_steps: np.ndarray) -> float:
    """Where those heights are twice the last, by a search along the straight pieces."""
    heights = convex(logs, log_steps)
    return float(np.exp(brentq(lambda x: np.interp(x, logs, heights) - heights[-1] - np.log(2.0), logs[0], logs[-1])))
