"""Axes: limits, ticks with plain numbers, labels that fit, a second axis in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import mul
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from analysis.present.style.lettering import literal, width, wrapped

_SUBS = ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), (1.0, 2.0, 3.0, 5.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))
"""Ticks within a factor of ten, the most first."""


def plain(value: float) -> str:
    """A tick label: 256, 4096, 20k, 3M; below one up to two digits."""
    for limit, length, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit:
            return f"{value / length:.4g}{suffix}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def log_axes(axes: Axes, x: Any, y: Any, **margins: float) -> None:
    """Both axes logarithmic, with limits around everything finite in ``x`` and ``y``."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*log_limits(x, **margins))
    axes.set_ylim(*log_limits(y, **margins))


def log_limits(values: Any, *, below: float = 0.06, above: float = 0.06) -> tuple[float, float]:
    """Limits of a log axis around the finite positive ``values``, with margins as shares of the range."""
    usable = np.asarray(values, dtype=float).ravel()
    usable = usable[np.isfinite(usable) & (usable > 0)]
    if not len(usable):
        return 0.5, 2.0
    low, high = np.log(usable.min()), np.log(usable.max())
    middle, span = (low + high) / 2, max(high - low, 0.7)
    return float(np.exp(middle - (0.5 + below) * span)), float(np.exp(middle + (0.5 + above) * span))


def log_axis(
    axis: Any,
    values: Sequence[float] | pd.Series | None = None,
    *,
    most: int = 6,
    span: tuple[float, float] | None = None,
) -> None:
    """A log axis with plain numbers: at most about ``most`` ticks, at ``values`` where given, else at round numbers."""
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    if values is not None and len(values):
        distinct = sorted(set(values))
        axis.set_major_locator(FixedLocator(distinct[:: -(-len(distinct) // most)]))
        return
    low, high = np.log10(np.asarray(span or axis.get_view_interval()))
    for subs in _SUBS:
        logs = np.add.outer(np.arange(np.floor(low), np.ceil(high)), np.log10(subs))
        if ((logs >= low) & (logs <= high)).sum() <= most:
            break
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=20))


def token_axis(axes: Axes, tokens_per_example: pd.Series, *, axis: str = "x", quantity: str = "batch size") -> None:
    """A second axis in tokens, where an example is the same number of tokens in every row."""
    tokens = tokens_per_example.dropna().unique()
    if len(tokens) != 1 or tokens_per_example.isna().any() or tokens[0] <= 1:
        return
    factor = float(tokens[0])
    add, side = (axes.secondary_xaxis, "top") if axis == "x" else (axes.secondary_yaxis, "right")
    second = add(cast(Any, side), functions=(partial(mul, factor), partial(mul, 1 / factor)))
    place = second.xaxis if axis == "x" else second.yaxis
    low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
    second.spines[:].set_visible(True)
    log_axis(place, span=(low * factor, high * factor), most=most_ticks(axes) if axis == "x" else 6)
    place.set_label_text(f"{quantity} (tokens)")


def batch_axes(axes: Axes, table: pd.DataFrame, label: str, ticks: pd.Series | None = None) -> None:
    """Ticks and labels of axes whose x is the batch size, in examples and in tokens; ``label`` is that of y."""
    log_axis(axes.xaxis, ticks, most=most_ticks(axes))
    log_axis(axes.yaxis)
    token_axis(axes, table["tokens_per_example"])
    axes.set_xlabel(f"batch size ({table['example_unit'].iloc[0]}s)")
    axis_label(axes, "y", label)


def axis_label(axes: Axes, axis: str, text: str) -> None:
    """Label of the ``"x"`` or ``"y"`` axis, on up to three lines where it is longer than the axis."""
    across, height = size(axes)
    if axis == "x":
        axes.set_xlabel(literal(wrapped(text, across + 0.4, 8, lines=3)))
    else:
        # One line may reach beyond both ends of the axis; several need the room for their neighbours.
        fits = width(text, 8) <= height + 0.2
        axes.set_ylabel(literal(text if fits else wrapped(text, 0.85 * height, 8, lines=3)))


def panel_title(axes: Axes, text: str) -> None:
    """Title of one of several panels, on up to three lines where it is wider than the panel."""
    axes.set_title(literal(wrapped(text, size(axes)[0] + 0.1, 8, lines=3)))


def most_ticks(axes: Axes) -> int:
    """How many labels the x axis has room for."""
    return int(np.clip(size(axes)[0] / 0.55, 2, 6))


def words(target: str) -> str:
    """A target as it stands on an axis."""
    return target.replace("_", " ")


def size(axes: Axes) -> tuple[float, float]:
    """Width and height of the axes in inches, about; labels and ticks take the rest of their cell of the grid."""
    figure, cells = cast(Figure, axes.figure), axes.get_gridspec()
    width, height = figure.get_size_inches()
    across, down = (cells.ncols, cells.nrows) if cells else (1, 1)
    return width / across - 0.6, height / down * 0.7
