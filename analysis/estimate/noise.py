r"""The noise scale of the trials at the best learning rate, both simple and in the optimizer's own geometry.

The simple one is :math:`B_{simple} = tr(\Sigma)/|G|^2` (McCandlish et al. 2018, equation 2.9). The matched one is the
noise scale in the dual norm of the optimizer's steps (Naganuma et al., arXiv 2602.03001), if the trials stored its
moments.

There is one summary, fixed in advance: the mean moments over the second half of the steps to target, pooled over seeds,
are divided at the very end; if moments are norms, the result is corrected for the batch size. If a mean is not
positive, the noise scale is undefined and reported as such.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analysis.quantities import Array, Quantity
from cbs.noise_scale.interval import corrected, ratio_interval
from cbs.trial.record import GeometryColumns

Columns = Mapping[str, Array]
"""Per-step columns of a trial by name, each of shape ``[steps]``."""

Recorded = tuple[Columns, Sequence[GeometryColumns]]
"""The columns of a trial, and the geometries among them."""

# Largest number of points of a trajectory, and smallest number of steps (over all seeds) per point
BINS, STEPS_PER_BIN = 16, 12

EUCLIDEAN = "l2"  # The geometry of the simple noise scale

_MOST_BLOCKS = 256  # Steps are summed in so many blocks, so that long runs take no longer
_NOTHING = pd.DataFrame(columns=["progress", "examples", "simple_noise_scale", "matched_noise_scale"], dtype=float)


@dataclass(frozen=True)
class NoiseScale(Quantity):
    """A noise scale in examples.

    Attributes:
        note: why the value or its interval is undefined, or how it was obtained; usually empty.
        measured: whether gradient moments were recorded.
    """

    note: str = ""
    measured: bool = True


@dataclass(frozen=True)
class NoiseScales:
    """Noise scales of one batch size.

    Attributes:
        summary: simple noise scale over the second half of the steps to target, pooled over seeds.
        matched: the same in the geometry ``geometry``, for norms after :func:`correct`.
        euclidean: columns in which the moments of ``summary`` were stored; ``None`` if they were not.
        geometry: geometry of ``matched``; if no other than the euclidean one was stored, it equals ``euclidean`` and
            ``matched`` equals ``summary``.
        trajectory: table with columns ``progress`` (fraction of the steps to target, middle of a bin), ``examples``,
            ``simple_noise_scale`` and ``matched_noise_scale`` (NaN where undefined).
    """

    summary: NoiseScale
    matched: NoiseScale
    euclidean: GeometryColumns | None
    geometry: GeometryColumns | None
    trajectory: pd.DataFrame = field(repr=False)


def measure(
    recorded: Sequence[Recorded], steps_to_target: Sequence[float], batch_size: int, *, confidence: float = 0.95
) -> NoiseScales:
    """Return the noise scales of the trials of one batch size at its best learning rate, one trial per seed."""
    geometry_columns = [entry for _, geometries in recorded for entry in geometries]
    whole = [entry for entry in dict.fromkeys(geometry_columns) if geometry_columns.count(entry) == len(recorded)]
    euclidean = next((entry for entry in whole if entry.geometry == EUCLIDEAN), None)
    geometry = next((entry for entry in whole if entry.geometry != EUCLIDEAN), euclidean)

    def moments(of: GeometryColumns | None) -> list[Array]:
        names = ("step", of.signal, of.noise) if of else ()
        return [np.stack([np.asarray(columns[name], dtype=float) for name in names]) for columns, _ in recorded if of]

    def summary(of: GeometryColumns | None) -> NoiseScale:
        if of is None:
            return NoiseScale(None, note="no gradient moments were recorded", measured=False)
        pairs = zip(moments(of), steps_to_target, strict=True)
        windows = [m[1:, (m[0] > steps / 2) & (m[0] <= steps)] for m, steps in pairs]
        windows = [window[:, np.isfinite(window).all(axis=0)] for window in windows]
        if not any(window.shape[1] for window in windows):
            note = "undefined at batch size 1" if batch_size == 1 else "no finite gradient moments in the second half"
            return NoiseScale(None, note=note, measured=False)
        return pooled_ratio(windows, exponent=of.exponent, confidence=confidence)

    simple, own, exponent = summary(euclidean), summary(geometry), geometry.exponent if geometry else 1
    return NoiseScales(
        simple,
        own if exponent == 1 else correct(own, simple, batch_size),
        euclidean,
        geometry,
        _trajectory(moments(euclidean), moments(geometry), exponent, steps_to_target, batch_size),
    )


def pooled_ratio(windows: Sequence[Array], *, exponent: int = 1, confidence: float = 0.95) -> NoiseScale:
    """Return ``(mean noise / mean signal) ** exponent`` over all steps of windows with rows ``(signal, noise)``, shape
    ``[2, steps]``.

    The interval is that of :func:`cbs.noise_scale.interval.ratio_interval`, with each window as a separate time series.
    """
    windows = [window for window in windows if window.shape[1]]
    total = sum(window.shape[1] for window in windows)
    length = math.ceil(total / _MOST_BLOCKS)
    starts = [np.arange(0, window.shape[1], length) for window in windows]
    pairs = list(zip(windows, starts, strict=True))
    steps = np.concatenate([np.diff(start, append=window.shape[1]) for window, start in pairs])
    sums = np.hstack([np.add.reduceat(window, start, axis=1) for window, start in pairs])
    first = np.concatenate(starts) == 0
    ratio = ratio_interval(*(sums / steps), steps=steps, starts=first, exponent=exponent, confidence=confidence)
    signal, noise = sums.sum(axis=1) / total
    if signal > 0 and noise > 0:
        return NoiseScale(float(noise / signal) ** exponent, (ratio.low, ratio.high), ratio.note)
    which = "signal" if signal <= 0 else "noise"
    return NoiseScale(None, (ratio.low, ratio.high), f"the mean {which} is not positive ({min(signal, noise):.3g})")


def near(scales: Mapping[int, NoiseScale], critical_batch_size: float | None) -> NoiseScale:
    """Return the noise scale that represents an optimizer.

    Of ``scales`` by batch size, it is the measured one nearest (in log) to the critical batch size; if that is unknown,
    the geometric mean over the batch sizes at which it is defined, without an interval.
    """
    able = {size: scale for size, scale in scales.items() if scale.measured}
    if not able:
        return next(iter(scales.values()), NoiseScale(None, note="the target was not reached", measured=False))
    if critical_batch_size:
        nearest = min(able, key=lambda size: abs(math.log(size / critical_batch_size)))
        return able[nearest]
    values = [scale.value for scale in able.values() if scale.value is not None]
    if not values:
        return next(iter(able.values()))
    return NoiseScale(math.exp(float(np.mean(np.log(values)))), note="geometric mean over batch sizes")


def correct(scale: NoiseScale, simple: NoiseScale, batch_size: int) -> NoiseScale:
    """Correct a noise scale of exponent 2 for the batch size it was measured at, using the simple one of the same
    steps.

    See :func:`cbs.noise_scale.interval.correction`. Without the correction, the value measured at B examples is bounded
    by a multiple of B, and would therefore agree with any batch size at which it is measured.
    """
    if scale.value is None:
        return scale
    if simple.value is None:
        return NoiseScale(None, note=f"its correction needs the plain one: {simple.note}")
    value, ends = corrected(scale.value, scale.interval, simple.value, simple.interval, batch_size)
    return NoiseScale(value, ends, scale.note or simple.note)


def _trajectory(
    euclidean: Sequence[Array],
    matched: Sequence[Array],
    exponent: int,
    steps_to_target: Sequence[float],
    batch_size: int,
) -> pd.DataFrame:
    if not euclidean and not matched:
        return _NOTHING
    bins = max(1, min(BINS, int(sum(steps_to_target) // STEPS_PER_BIN)))
    progress = (np.arange(bins) + 0.5) / bins
    mean_steps = math.exp(float(np.mean(np.log(steps_to_target))))
    simple, own = _binned(euclidean, steps_to_target, bins), _binned(matched, steps_to_target, bins) ** exponent
    if exponent == 2:
        own = own * (1.0 + simple / batch_size)
    return pd.DataFrame(dict(zip(_NOTHING, (progress, progress * mean_steps * batch_size, simple, own), strict=True)))


def _binned(moments: Sequence[Array], steps_to_target: Sequence[float], bins: int) -> Array:
    """Return mean noise over mean signal in bins along the way to the target; NaN where a mean is not positive."""
    sums = np.zeros((2, bins))
    for moment, steps in zip(moments, steps_to_target if moments else [], strict=True):
        usable = (moment[0] <= steps) & np.isfinite(moment[1:]).all(axis=0)
        index = np.minimum((moment[0, usable] / steps * bins).astype(int), bins - 1)
        sums += [np.bincount(index, row, minlength=bins) for row in moment[1:, usable]]
    defined = (sums > 0).all(axis=0)
    return np.where(defined, sums[1] / np.where(defined, sums[0], 1.0), np.nan)
