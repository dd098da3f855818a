"""Norms, trust ratios and clipped shares along the trials at the best learning rate, as the diagnostic
``optimizer_step`` of :mod:`cbs.diagnostics` records them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.estimate.attention import intervals
from analysis.estimate.noise import Columns

QUANTITIES = {
    "trust_ratio": "trust ratio",
    "largest_trust_ratio": "largest trust ratio of rows, columns and whole",
    "clipped_share": "share of entries that move by the learning rate or more",
    "weight_norm": "norm of weights",
    "gradient_norm": "norm of gradients",
    "update_norm": "norm of updates",
}
"""Prefixes of the columns' names, which end with the name of the matrix, and what the columns hold."""

COLUMNS = ["quantity", "matrix", "step", "examples", "value"]


def optimizer_steps(columns: Sequence[Columns], steps_to_target: Sequence[float], batch_size: int) -> pd.DataFrame:
    """Return curves of every quantity of every matrix, up to the step at which the first seed reached the target.

    Args:
        columns: per-step columns of one trial per seed; trials without columns of this diagnostic are ignored.
        steps_to_target: steps to target of each trial.
        batch_size: examples per step.

    Returns:
        One row per quantity, matrix and point: ``step`` and ``examples`` at which the interval of the point ends, and
        ``value``, the median over seeds of each seed's mean since the previous point. No rows if nothing was recorded.
    """
    recorded = [
        (name.partition("."), np.asarray(values, dtype=float), min(int(np.ceil(steps)), int(found["step"][-1])))
        for found, steps in zip(columns, steps_to_target, strict=True)
        for name, values in found.items()
        if name.partition(".")[0] in QUANTITIES
    ]
    if not recorded:
        return pd.DataFrame(columns=COLUMNS)
    last = min(steps for _, _, steps in recorded)
    starts, ends = intervals(last)
    curves = []
    for (quantity, _, matrix), values, _ in recorded:
        seen = np.isfinite(values[:last])
        counts = np.add.reduceat(seen.astype(int), starts)
        sums = np.add.reduceat(np.where(seen, values[:last], 0.0), starts)
        means = np.divide(sums, counts, out=np.full(len(ends), np.nan), where=counts > 0)
        curves.append(pd.DataFrame({"quantity": quantity, "matrix": matrix, "step": ends, "value": means}))
    table = pd.concat(curves).dropna().groupby(COLUMNS[:3], sort=False)["value"].median().reset_index()
    return table.assign(examples=table["step"] * batch_size)[COLUMNS]
