r"""The simple noise scale of the trials at the best learning rate.

McCandlish et al. (2018), equation 2.9: :math:`B_{simple} = tr(\Sigma)/|G|^2`, in examples. Both moments are
estimated without bias on every step, their ratio is not: moments are averaged over steps and seeds first and divided
last. An average :math:`|G|^2` that is not positive leaves the ratio undefined, and that is what is reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.curves import Array
from cbs.store import read_steps

BINS, STEPS_PER_BIN = 16, 12
"""Most points of a trajectory, and fewest steps (over all seeds) that make a point."""

_COLUMNS = ("step", "grad_sq_norm", "noise_trace")
_LEAST_BLOCKS = 4


@dataclass(frozen=True)
class NoiseScale:
    """A simple noise scale.

    Attributes:
        value: examples; ``None`` where undefined.
        interval: ends of the interval; ``None`` where an end is open or undefined.
        note: why the value is undefined, or how it came about; mostly empty.
        measured: whether there were gradient moments to take it from.
    """

    value: float | None
    interval: tuple[float | None, float | None] = (None, None)
    note: str = ""
    measured: bool = True


@dataclass(frozen=True)
class Measured:
    """Noise scale of one batch size.

    Attributes:
        summary: over the second half of the steps to target, pooled over seeds.
        trajectory: columns ``progress`` (share of the steps to target, middle of a bin), ``examples`` and
            ``simple_noise_scale`` (NaN where undefined).
    """

    summary: NoiseScale
    trajectory: pd.DataFrame = field(repr=False)


def measure(
    folders: Sequence[Path],
    steps_to_target: Sequence[float],
    batch_size: int,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Measured:
    """Noise scale of the trials of one batch size at its best learning rate.

    Args:
        folders: one trial folder per seed.
        steps_to_target: of each trial.
        batch_size: examples per step.
        confidence: of the interval.
        resamples: of the block bootstrap.
        seed: of the block bootstrap.

    Raises:
        ResultsError: if a ``steps.parquet`` is missing or damaged.
    """
    moments = [moment for moment in (_moments(folder) for folder in folders) if moment is not None]
    if len(moments) < len(folders) or not moments:
        return Measured(
            NoiseScale(None, note="no gradient moments were recorded", measured=False), _trajectory([], [], batch_size)
        )
    trajectory = _trajectory(moments, steps_to_target, batch_size)
    windows = [m[1:, (m[0] > steps / 2) & (m[0] <= steps)] for m, steps in zip(moments, steps_to_target, strict=True)]
    windows = [window[:, np.isfinite(window).all(axis=0)] for window in windows]
    if not sum(window.shape[1] for window in windows):
        note = "undefined at batch size 1" if batch_size == 1 else "no finite gradient moments in the second half"
        return Measured(NoiseScale(None, note=note, measured=False), trajectory)
    return Measured(pooled_ratio(windows, confidence=confidence, resamples=resamples, seed=seed), trajectory)


def pooled_ratio(
    windows: Sequence[Array], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> NoiseScale:
    """Mean noise trace over mean squared gradient, with a block-bootstrap interval.

    Consecutive steps are correlated, so whole blocks of about ``sqrt(steps)`` steps of one trial are drawn. A resample
    whose mean squared gradient is not positive counts as an infinite noise scale.

    Args:
        windows: per seed the rows ``(grad_sq_norm, noise_trace)``, shape ``[2, steps]``.
        confidence: of the interval.
        resamples: number of resamples.
        seed: of the resampling.
    """
    sums = np.concatenate([_block_sums(window) for window in windows if window.shape[1]], axis=1)
    square, trace, _ = sums.sum(axis=1) / sums[2].sum()
    if square <= 0 or trace <= 0:
        which = "|G|^2" if square <= 0 else "tr(Sigma)"
        return NoiseScale(None, note=f"the mean estimate of {which} is not positive ({min(square, trace):.3g})")
    blocks = sums.shape[1]
    if blocks < _LEAST_BLOCKS:
        return NoiseScale(float(trace / square))
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(blocks, np.full(blocks, 1.0 / blocks), size=resamples).astype(float)
    squares, traces, steps = (counts @ row for row in sums)
    widening = math.sqrt(blocks / (blocks - 1))
    squares = square + widening * (squares / steps - square)
    traces = trace + widening * (traces / steps - trace)
    ratios = np.where(squares > 0, traces / np.where(squares > 0, squares, 1.0), np.inf)
    low, high = np.quantile(ratios, [0.5 - confidence / 2, 0.5 + confidence / 2], method="nearest")
    return NoiseScale(
        float(trace / square),
        (float(low) if 0 < low < np.inf else None, float(high) if np.isfinite(high) else None),
    )


def near(measured: dict[int, Measured], critical_batch_size: float | None) -> NoiseScale:
    """The noise scale that stands for an optimizer.

    That of the measured batch size nearest (in log) to the critical batch size; without one, the geometric mean over
    the batch sizes at which it is defined, without an interval.

    Args:
        measured: by batch size.
        critical_batch_size: fitted, in examples, or ``None``.
    """
    able = {size: entry.summary for size, entry in measured.items() if entry.summary.measured}
    if not able:
        return next(
            (entry.summary for entry in measured.values()),
            NoiseScale(None, note="the target was not reached", measured=False),
        )
    if critical_batch_size:
        nearest = min(able, key=lambda size: abs(math.log(size / critical_batch_size)))
        return able[nearest]
    values = [summary.value for summary in able.values() if summary.value is not None]
    if not values:
        return next(iter(able.values()))
    return NoiseScale(math.exp(float(np.mean(np.log(values)))), note="geometric mean over batch sizes")


def _moments(folder: Path) -> Array | None:
    columns = read_steps(folder / "steps.parquet")
    if any(name not in columns for name in _COLUMNS):
        return None
    return np.stack([np.asarray(columns[name], dtype=float) for name in _COLUMNS])


def _block_sums(window: Array) -> Array:
    """Sums of both moments and the number of steps of every block, shape ``[3, blocks]``."""
    steps = window.shape[1]
    starts = np.arange(0, steps, math.ceil(math.sqrt(steps)))
    return np.add.reduceat(np.vstack([window, np.ones(steps)]), starts, axis=1)


def _trajectory(moments: Sequence[Array], steps_to_target: Sequence[float], batch_size: int) -> pd.DataFrame:
    columns = ["progress", "examples", "simple_noise_scale"]
    if not moments:
        return pd.DataFrame(columns=columns, dtype=float)
    bins = max(1, min(BINS, int(sum(steps_to_target) // STEPS_PER_BIN)))
    sums = np.zeros((2, bins))
    for moment, steps in zip(moments, steps_to_target, strict=True):
        usable = (moment[0] <= steps) & np.isfinite(moment[1:]).all(axis=0)
        index = np.minimum((moment[0, usable] / steps * bins).astype(int), bins - 1)
        sums += [np.bincount(index, row, minlength=bins) for row in moment[1:, usable]]
    progress = (np.arange(bins) + 0.5) / bins
    defined = (sums > 0).all(axis=0)
    ratio = np.where(defined, sums[1] / np.where(defined, sums[0], 1.0), np.nan)
    mean_steps = math.exp(float(np.mean(np.log(steps_to_target))))
    return pd.DataFrame(dict(zip(columns, (progress, progress * mean_steps * batch_size, ratio), strict=True)))
