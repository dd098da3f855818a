"""Curves along the trials at the best learning rate of what the diagnostics of this extension record at every step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.estimate.along_training import ALONG_TRAINING, AlongTraining
from analysis.estimate.noise import Columns
from analysis.quantities import Array

PREFIX = "max_attention_logit_layer_"
QUANTITIES = {
    "trust_ratio": "trust ratio",
    "largest_trust_ratio": "largest trust ratio of rows, columns and whole",
    "clipped_share": "share of entries that move by the learning rate or more",
    "weight_norm": "norm of weights",
    "gradient_norm": "norm of gradients",
    "update_norm": "norm of updates",
}
"""Start of the names of the columns of the diagnostic ``optimizer_step``, and what they hold."""

POINTS = 64  # Largest number of points of a curve, at geometrically spaced steps

LOGITS = ["layer", "step", "examples", "max_attention_logit", "low", "high", "seeds", "log_deviation"]
MATRICES = ["quantity", "matrix", "step", "examples", "value"]


def attention_logits(columns: Sequence[Columns], steps_to_target: Sequence[float], batch_size: int) -> pd.DataFrame:
    """Return curves of the largest attention logit of every layer; arguments as for :func:`_curves`.

    Returns:
        One row per layer and point: ``layer`` counts from 1; ``step`` and ``examples`` at which the interval of the
        point ends; ``max_attention_logit``, the median over seeds of each seed's largest value since the previous
        point; ``low`` and ``high``, the smallest and the largest value over seeds; ``seeds``, their number;
        ``log_deviation``, the deviation over seeds of its logarithm. No rows if nothing was measured.
    """
    curves = _curves(columns, steps_to_target, lambda name: name.startswith(PREFIX), np.fmax.reduceat)
    if curves.empty:
        return pd.DataFrame(columns=LOGITS)
    curves["layer"] = curves["name"].str.removeprefix(PREFIX).astype(int)
    of_points = curves.groupby(["layer", "step"])["value"]
    table = of_points.agg(["median", "min", "max", "count", _log_deviation]).reset_index()
    table.insert(2, "examples", table["step"] * batch_size)
    return table.set_axis(LOGITS, axis=1)


def optimizer_steps(columns: Sequence[Columns], steps_to_target: Sequence[float], batch_size: int) -> pd.DataFrame:
    """Return curves of every one of :data:`QUANTITIES` of every matrix; arguments as for :func:`_curves`.

    Returns:
        One row per quantity, matrix and point: ``step`` and ``examples`` at which the interval of the point ends, and
        ``value``, the median over seeds of each seed's mean since the previous point. No rows if nothing was recorded.
    """
    curves = _curves(columns, steps_to_target, lambda name: name.partition(".")[0] in QUANTITIES, _means)
    if curves.empty:
        return pd.DataFrame(columns=MATRICES)
    table = curves.groupby(["name", "step"], sort=False)["value"].median().reset_index()
    table[["quantity", "matrix"]] = table["name"].str.partition(".")[[0, 2]]
    return table.assign(examples=table["step"] * batch_size)[MATRICES]


def _curves(
    columns: Sequence[Columns],
    steps_to_target: Sequence[float],
    wanted: Callable[[str], bool],
    reduced: Callable[[Array, np.ndarray], Array],
) -> pd.DataFrame:
    """Return points up to the step at which the first seed reached the target.

    Args:
        columns: per-step columns of one trial per seed, see :func:`cbs.trial.trial_files.read_steps`; trials without
            columns of the diagnostic are ignored.
        steps_to_target: steps to target of each trial.
        wanted: whether a column of this name belongs to the diagnostic.
        reduced: one number for each of several intervals, from the values of all steps and the starts of the intervals.

    Returns:
        One row per trial, column (``name``) and point: ``step`` at which its interval ends, and ``value``. Empty if
        nothing was recorded.
    """
    recorded = [
        (name, np.asarray(values, dtype=float), min(np.ceil(steps), found["step"][-1]))
        for found, steps in zip(columns, steps_to_target, strict=True)
        for name, values in found.items()
        if wanted(name)
    ]
    last = int(min((steps for _, _, steps in recorded), default=1))
    ends = np.unique(np.geomspace(1, last, POINTS).round().astype(int))
    starts = np.concatenate([[0], ends[:-1]])
    curves = [
        pd.DataFrame({"name": name, "step": ends, "value": reduced(values[:last], starts)})
        for name, values, _ in recorded
    ]
    return pd.concat(curves).dropna() if curves else pd.DataFrame()


def _means(values: Array, starts: np.ndarray) -> Array:
    """Return the mean of what is known in each interval, NaN where nothing is."""
    seen = np.isfinite(values)
    counts = np.add.reduceat(seen.astype(int), starts)
    sums = np.add.reduceat(np.where(seen, values, 0.0), starts)
    return np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)


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


ALONG_TRAINING.register("max_attention_logits")(AlongTraining(curves=attention_logits, told=peaks))
ALONG_TRAINING.register("optimizer_steps")(AlongTraining(curves=optimizer_steps))
