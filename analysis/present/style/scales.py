"""Axes and their text: limits, ticks with plain numbers, a second axis in tokens, labels that fit and are readable."""

import functools
import math
import re
from collections.abc import Sequence
from operator import mul
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

FONT = "DejaVu Sans"

# Smallest contrast ratio of text and background (WCAG 2.2, success criterion 1.4.3)
CONTRAST = 4.5

_BREAKS = re.compile(r"(?:[^\s,_(=/-]|(?<=\d),(?=\d))*[\s,_(=/-]?")

# Ticks within a factor of ten, from many to few
_SUBS = ((1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), (1.0, 2.0, 3.0, 5.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,))


def plain(value: float) -> str:
    """Format a tick label: 256, 4096, 16k (16384), 20k, 3M; below one with up to two digits."""
    if 1e4 <= value < 1e6 and math.log2(value).is_integer():  # as batch sizes are
        return f"{value / 1024:.0f}k"
    if 1e4 <= value < 1e6 and value % 100:
        return f"{value:.0f}"
    for limit, length, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit:
            return f"{value / length:.4g}{suffix}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def log_axes(
    axes: Axes, x: Any, y: Any, label: str, y_label: str, *, ticks: Any = None, most: int = 6, **margins: float
) -> None:
    """Make both axes logarithmic and labelled, with limits around everything finite in ``x`` and ``y``, and ticks at
    round numbers, or at ``ticks`` on the x axis if given."""
    log_scale(axes, "x", x, ticks, most=most, **margins)
    log_scale(axes, "y", y, most=6, **margins)
    axis_label(axes, "x", label)
    axis_label(axes, "y", y_label)


def log_scale(axes: Axes, axis: str, values: Any, ticks: Any = None, *, most: int = 6, **margins: float) -> None:
    """Make the ``"x"`` or ``"y"`` axis logarithmic around everything finite in ``values``, see :func:`log_axis`."""
    axes.set(**{f"{axis}scale": "log"})
    axes.set(**{f"{axis}lim": log_limits(values, least=0.2 if axis == "x" else 0.7, **margins)})
    log_axis(getattr(axes, f"{axis}axis"), ticks, most=most)


def data_scale(axes: Axes) -> None:
    """Make the x axis linear, with plain numbers."""
    axes.xaxis.set_major_locator(MaxNLocator(most_ticks(axes)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def near(lines: pd.Series, ends: pd.DataFrame, factor: float) -> np.ndarray:
    """Return the values to show of lines and of the ends of their bands; of the bands only what is within a factor of
    the lines, because they would dominate the plot otherwise."""
    positions = ends.to_numpy(dtype=float).ravel()
    return np.concatenate([lines, positions[(positions > lines.min() / factor) & (positions < lines.max() * factor)]])


def log_limits(values: Any, *, below: float = 0.06, above: float = 0.06, least: float = 0.7) -> tuple[float, float]:
    """Return limits of a log axis around the finite positive ``values``, with margins as fractions of the range, which
    is taken as at least ``least`` in natural logarithms."""
    usable = np.asarray(values, dtype=float).ravel()
    usable = usable[np.isfinite(usable) & (usable > 0)]
    if not len(usable):
        return 0.5, 2.0
    low, high = np.log(usable.min()), np.log(usable.max())
    middle, span = (low + high) / 2, max(high - low, least)
    return float(np.exp(middle - (0.5 + below) * span)), float(np.exp(middle + (0.5 + above) * span))


class _RoundNumbers(LogLocator):
    """Places ticks at the roundest numbers within an axis at drawing time, about ``most`` of them at most, and on the x
    axis none whose labels touch."""

    def __init__(self, most: int, of: Any) -> None:
        super().__init__(base=10, numticks=20)
        self.most, self._of = most, of

    def tick_values(self, low: float, high: float) -> Any:
        start, end = np.log10([low, high])
        for subs in _SUBS:
            logs = np.add.outer(np.arange(np.floor(start), np.ceil(end)), np.log10(subs))
            count = ((logs >= start) & (logs <= end)).sum()
            nearest = np.diff(np.log10([*subs, 10])).min() / (end - start) * size(self._of.axes)[0]
            if count <= self.most and (self._of.axis_name == "y" or nearest > width("3000", 7) + 0.12):
                break
        if count < 2:  # of fewer matplotlib would make many that are not round
            return MaxNLocator(2, steps=[1, 2, 5, 10]).tick_values(low, high)
        self.set_params(subs=subs)
        return super().tick_values(low, high)


def log_axis(axis: Any, values: Sequence[float] | pd.Series | None = None, *, most: int = 6) -> None:
    """Make a log axis with plain numbers: at most about ``most`` ticks, at ``values`` if given, otherwise at round
    numbers. The limits of the axis have to be final if values are given."""
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    distinct = sorted(set(() if values is None else values))
    low, high = axis.get_view_interval()
    ticks = apart(axis.axes, axis.axis_name, distinct, float(np.log(high / low)), most)
    axis.set_major_locator(FixedLocator(ticks) if ticks else _RoundNumbers(most, axis))


def apart(axes: Axes, axis: str, values: Sequence[float], span: float, most: int) -> list[float]:
    """Return values without those whose labels would overlap the one before on an axis that spans e to the ``span``,
    and of these about ``most`` at most."""
    inches = size(axes)[axis == "y"] / span
    kept = list(values[:1])
    for value in values[1:]:
        room = 0.12 if axis == "y" else (width(plain(kept[-1]), 7) + width(plain(value), 7)) / 2 + 0.05
        if np.log(value / kept[-1]) * inches > room:
            kept.append(value)
    return kept[:: max(1, -(-len(kept) // most))]


def token_axis(axes: Axes, tokens_per_example: pd.Series, *, axis: str = "x", quantity: str = "batch size") -> None:
    """Add a second axis in tokens if an example is the same number of tokens in every row."""
    tokens = tokens_per_example.dropna().unique()
    if len(tokens) != 1 or tokens_per_example.isna().any() or tokens[0] <= 1:
        return
    functions = functools.partial(mul, float(tokens[0])), functools.partial(mul, 1 / float(tokens[0]))
    if axis == "x":
        second = axes.secondary_xaxis("top", functions=functions)
    else:
        second = axes.secondary_yaxis("right", functions=functions)
    second.spines[:].set_visible(True)
    place = second.xaxis if axis == "x" else second.yaxis
    log_axis(place, most=most_ticks(axes) if axis == "x" else 6)
    place.set_label_text(f"{quantity} (tokens)")


def batch_axes(axes: Axes, table: pd.DataFrame, y: Any, label: str, sizes: pd.Series | None = None) -> None:
    """Make both axes logarithmic, with batch size in examples and in tokens against ``y``; limits and ticks follow
    ``sizes`` if given, otherwise limits follow all batch sizes of the table."""
    of_x = f"batch size ({table['example_unit'].iloc[0]}s)"
    x = table["batch_size"] if sizes is None else sizes
    ticks = None if sizes is None else _with_room(sorted(set(sizes)), size(axes)[0])
    log_axes(axes, x, y, of_x, label, ticks=ticks, most=len(ticks) if ticks else most_ticks(axes))
    if x.nunique() > 1:  # of one size the points of several curves stand side by side, and would read as other tokens
        token_axis(axes, table["tokens_per_example"])


def _with_room(values: Sequence[float], inches: float) -> Sequence[float]:
    """Return every value, or every second, third and so on, so that their labels fit side by side on a log axis."""
    positions = np.log(values) * 0.85 * inches / max(np.log(values[-1] / values[0]), 0.2)
    room = np.array([width(plain(value), 7) for value in values]) / 2 + 0.05
    for step in range(1, len(values)):
        near = np.diff(positions[::step]) < room[:-step:step] + room[step::step]
        if not near.any():
            return values[::step]
    return values[:1]


def axis_label(axes: Axes, axis: str, text: str) -> None:
    """Set the label of the ``"x"`` or ``"y"`` axis, on up to three lines if it is longer than the axis."""
    across, height = size(axes)
    if axis == "x":
        axes.set_xlabel(literal(wrapped(text, across + 0.4, 8, lines=3)))
    else:
        # One line may extend beyond both ends of the axis; several lines would collide with neighbouring labels.
        fits = width(text, 8) <= height + 0.2
        axes.set_ylabel(literal(text if fits else wrapped(text, 0.85 * height, 8, lines=3)))


def most_ticks(axes: Axes) -> int:
    """Return how many labels the x axis has room for."""
    return int(np.clip(size(axes)[0] / 0.55, 2, 6))


def words(target: str) -> str:
    """Format a target for an axis."""
    return target.replace("_", " ")


def size(axes: Axes) -> tuple[float, float]:
    """Return the approximate width and height of the axes in inches; labels and ticks take the rest of their cell."""
    figure, cells = cast(Figure, axes.figure), axes.get_gridspec()
    width, height = figure.get_size_inches()
    across, down = (cells.ncols, cells.nrows) if cells else (1, 1)
    return width / across - 0.6, height / down * 0.7


def literal(text: str) -> str:
    """Return ``text`` so that matplotlib draws it literally: without mathematics, and not dropped from a key because of
    a leading underscore."""
    escaped = text.replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


@functools.lru_cache(maxsize=4096)
def width(text: str, size: float) -> float:
    """Return the width of one line in inches at a font size in points; mathematics counts as its letters."""
    plain = re.sub(r"\$|\\mathrm|[{}]", "", text)
    properties = FontProperties(family=FONT, size=size)
    return float(text_to_path.get_text_width_height_descent(plain, properties, ismath=False)[0]) / 72


def wrapped(text: str, inches: float, size: float, *, lines: int = 1) -> str:
    """Return ``text`` on at most ``lines`` lines of a width, broken after a space, a comma or the like.

    What does not fit is cut from the middle, because similar names usually differ at their ends.
    """
    lines_of_text = _broken(text, inches, size)
    keep = len(text)
    while len(lines_of_text) > lines and keep > 1:
        keep -= 1
        lines_of_text = _broken(f"{text[: -(-keep // 2)]}…{text[len(text) - keep // 2 :]}", inches, size)
    return "\n".join(lines_of_text)


def wrapped_apart(texts: Sequence[str], inches: float, size: float, *, lines: int) -> list[str]:
    """Return :func:`wrapped` of each text, on as many more lines as needed for different texts to stay different."""
    wrapped_texts = [wrapped(text, inches, size, lines=lines) for text in texts]
    while len({*wrapped_texts}) < len({*texts}) and "…" in "".join(wrapped_texts):
        lines += 1
        wrapped_texts = [wrapped(text, inches, size, lines=lines) for text in texts]
    return wrapped_texts


def _broken(text: str, inches: float, size: float) -> list[str]:
    lines = [""]
    for part in _BREAKS.findall(text):
        rest = part
        if width((lines[-1] + rest).rstrip(), size) > inches and lines[-1]:
            lines.append("")
        while width(rest.rstrip(), size) > inches and len(rest) > 1:
            fits = max(1, next(n for n in range(len(rest), 0, -1) if n == 1 or width(rest[:n], size) <= inches))
            lines[-1] = rest[:fits]
            rest = rest[fits:]
            lines.append("")
        lines[-1] += rest
    return [line.rstrip() for line in lines if line.strip()] or [text]


def luminance(colour: Any) -> float:
    """Return the relative luminance of a colour (WCAG 2.2): 0 is black, 1 is white."""
    channels = np.asarray(to_rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def ink(colour: Any) -> str:
    """Return the colour, darkened until text on white has a contrast of :data:`CONTRAST`."""
    channels = np.asarray(to_rgb(colour))
    for share in np.linspace(1.0, 0.0, 51):
        if 1.05 / (luminance(share * channels) + 0.05) >= CONTRAST:  # against white, by WCAG 2.2
            return to_hex(share * channels)
    raise AssertionError("black on white has a contrast of 21")
