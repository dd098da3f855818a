"""The largest attention logit along the trials at the best learning rate, as :mod:`cbs.diagnostics` recorded it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.estimate.noise import Columns

PREFIX = "max_attention_logit_layer_"
POINTS = 64
"""Most points of a curve, at geometric steps."""

COLUMNS = ["layer", "step", "examples", "max_attention_logit", "low", "high", "seeds"]
_NOTHING = pd.DataFrame(columns=COLUMNS)


def attention_logits(columns: Sequence[Columns], steps_to_target: Sequence[float], batch_size: int) -> pd.DataFrame:
    """Curves of the largest attention logit of every layer, up to the step at which the first seed was at the target.

    Args:
        columns: the per-step columns of one trial per seed, see :func:`cbs.store.read_steps`; trials without those of
            the diagnostic are left out.
        steps_to_target: of each trial.
        batch_size: examples per step.

    Returns:
        One row per layer and point: ``layer`` from 1 on, ``step`` and ``examples`` where the point ends,
        ``max_attention_logit``: the median over seeds of each seed's largest value since the point before, ``low`` and
        ``high``: the least and the most of the seeds, ``seeds``: their number. No row where nothing was measured.
    """
    names = [{name for name in found if name.startswith(PREFIX)} for found in columns]
    layers = sorted({int(name.removeprefix(PREFIX)) for found in names for name in found})
    measured = [(found, steps) for found, steps, own in zip(columns, steps_to_target, names, strict=True) if own]
    if not measured:
        return _NOTHING
    last = int(min(min(np.ceil(steps), found["step"][-1]) for found, steps in measured))
    ends = np.unique(np.geomspace(1, last, POINTS).round().astype(int))
    tables = []
    for layer in layers:
        name = f"{PREFIX}{layer}"
        seeds = np.stack([_largest(found[name], ends) for found, _ in measured if name in found])
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
