"""The largest attention logit along the trials at the best learning rate, as :mod:`cbs.diagnostics` recorded it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from cbs.store import read_steps

PREFIX = "max_attention_logit_layer_"
POINTS = 64
"""Most points of a curve, at geometric steps."""

COLUMNS = ["layer", "step", "examples", "max_attention_logit", "low", "high", "seeds"]


def attention_logits(folders: Sequence[Path], steps_to_target: Sequence[float], batch_size: int) -> pd.DataFrame:
    """Curves of the largest attention logit of every layer, up to the step at which the first seed was at the target.

    Args:
        folders: one trial folder per seed; those without the columns are left out.
        steps_to_target: of each trial.
        batch_size: examples per step.

    Returns:
        One row per layer and point: ``layer`` from 1 on, ``step`` and ``examples`` where the point ends,
        ``max_attention_logit``: the median over seeds of each seed's largest value since the point before, ``low`` and
        ``high``: the least and the most of the seeds, ``seeds``: their number. No row where nothing was measured.

    Raises:
        ResultsError: if a ``steps.parquet`` is missing or damaged.
    """
    found = [read_steps(folder / "steps.parquet", prefix=PREFIX) for folder in folders]
    layers = sorted({int(name.removeprefix(PREFIX)) for columns in found for name in columns if name != "step"})
    measured = [(columns, steps) for columns, steps in zip(found, steps_to_target, strict=True) if len(columns) > 1]
    if not measured:
        return pd.DataFrame(columns=COLUMNS)
    last = int(min(min(np.ceil(steps), columns["step"][-1]) for columns, steps in measured))
    ends = np.unique(np.geomspace(1, last, POINTS).round().astype(int))
    tables = []
    for layer in layers:
        name = f"{PREFIX}{layer}"
        seeds = np.stack([_largest(columns[name], ends) for columns, _ in measured if name in columns])
        known = ~np.isnan(seeds).all(axis=0)
        table = {
            "layer": layer,
            "step": ends[known],
            "examples": ends[known] * batch_size,
            "max_attention_logit": np.nanmedian(seeds[:, known], axis=0),
            "low": np.nanmin(seeds[:, known], axis=0),
            "high": np.nanmax(seeds[:, known], axis=0),
            "seeds": (~np.isnan(seeds[:, known])).sum(axis=0),
        }
        tables.append(pd.DataFrame(table))
    return pd.concat(tables, ignore_index=True)


def _largest(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Largest value of the steps up to each of ``ends`` and after the one before; NaN where none was measured."""
    starts = np.concatenate([[0], ends[:-1]])
    return np.fmax.reduceat(values[: ends[-1]], starts)
