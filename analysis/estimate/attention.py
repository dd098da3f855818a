"""The largest attention logit along the trials at the best learning rate, as recorded by :mod:`cbs.diagnostics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.estimate.noise import Columns

PREFIX = "max_attention_logit_layer_"
POINTS = 64
"""Largest number of points of a curve, at geometrically spaced steps."""

COLUMNS = ["layer", "step", "examples", "max_attention_logit", "low", "high", "seeds", "log_deviation"]
_NOTHING = pd.DataFrame(columns=COLUMNS)


def attention_logits(columns: Sequence[Columns], steps_to_target: Sequence[float], batch_size: int) -> pd.DataFrame:
    """Return curves of the largest attention logit of every layer, up to the step at which the first seed reached the
    target.

    Args:
        columns: per-step columns of one trial per seed, see :func:`cbs.trial.trial_files.read_steps`; trials without
            columns of this diagnostic are ignored.
        steps_to_target: steps to target of each trial.
        batch_size: examples per step.

    Returns:
        One row per layer and point: ``layer`` counts from 1; ``step`` and ``examples`` at which the interval of the
        point ends; ``max_attention_logit``, the median over seeds of each seed's largest value since the previous
        point; ``low`` and ``high``, the smallest and the largest value over seeds; ``seeds``, their number;
        ``log_deviation``, the deviation over seeds of its logarithm. No rows if nothing was measured.
    """
    every = zip(columns, steps_to_target, strict=True)
    measured = [(found, steps) for found, steps in every if any(name.startswith(PREFIX) for name in found)]
    if not measured:
        return _NOTHING
    last = int(min(min(np.ceil(steps), found["step"][-1]) for found, steps in measured))
    starts, ends = intervals(last)
    curves = [
        pd.DataFrame({"layer": int(name[len(PREFIX) :]), "step": ends, "largest": np.fmax.reduceat(of[:last], starts)})
        for found, _ in measured
        for name, of in found.items()
        if name.startswith(PREFIX)
    ]
    points = pd.concat(curves).dropna().groupby(["layer", "step"])["largest"]
    table = points.agg(["median", "min", "max", "count", _log_deviation]).reset_index()
    table.insert(2, "examples", table["step"] * batch_size)
    return table.set_axis(COLUMNS, axis=1)


def intervals(last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of the intervals of steps, up to the last one, that make the points of a curve."""
    ends = np.unique(np.geomspace(1, last, POINTS).round().astype(int))
    return np.concatenate([[0], ends[:-1]]), ends


def _log_deviation(values: pd.Series) -> float:
    return float(np.log(values.where(values > 0)).std(skipna=False))


def peaks(curves: pd.DataFrame, confidence: float) -> list[dict[str, Any]]:
    """Return the largest point of every layer in a table of :func:`attention_logits`, with the interval of its median
    by Student's t of the logarithms over seeds, open where there is one seed or a peak is not positive."""
    rows = curves.loc[curves.groupby("layer")["max_attention_logit"].idxmax()] if len(curves) else curves
    found = []
    for row in rows.itertuples():
        reach = float(stdtrit(row.seeds - 1, 0.5 + confidence / 2)) if row.seeds > 1 else np.nan
        wide = np.exp(reach * row.log_deviation / np.sqrt(row.seeds))
        ends = [row.max_attention_logit / wide, row.max_attention_logit * wide]
        interval = [float(end) if np.isfinite(end) else None for end in ends]
        found.append({"layer": int(row.layer), "peak": float(row.max_attention_logit), "peak_interval": interval,
                      "step": int(row.step)})  # fmt: skip
    return found
