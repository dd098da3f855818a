"""How figures look: page, fonts, marks and lines, and how figures are saved. :mod:`.scales` has axes, :mod:`.labels`
text beside marks.

An optimizer keeps colour, marker and dashes in every panel, unless it has a panel of its own; none is distinguished by
its colour alone. Figures are built with the object interface only; nothing here touches the state of
:mod:`matplotlib.pyplot`.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

# isort: off
# ruff: noqa: F401
from analysis.present.style.labels import SMALL, below, key, label_ends, label_points, spread
from analysis.present.style.scales import (
    apart, axis_label, batch_axes, data_scale, literal, log_axes, log_axis, log_scale, most_ticks, near, plain,
    size, token_axis, width, words, wrapped, wrapped_apart,
)  # fmt: skip
from analysis.figure_options import DEFAULT, Venue
from analysis.estimate.comparison import Standing

PANEL_HEIGHT = 2.5  # In inches; with the narrow column of a paper, 3.25 wide, about 4 to 3
LOW_PANEL = 1.7  # Height of the panels in inches if there are many
PANEL_WIDTH = 1.9  # Smallest width of a panel in inches; narrower pages have fewer panels side by side

# Median ratio of the ends of a band above which only its edges are drawn; filled it would cover everything
WIDE_BAND = 10.0

OPEN_ARROW = 12  # Length of the arrow of an open interval, in points

GREY, ALERT = "#7f7f7f", "#d00000"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of Okabe and Ito (2008), distinguishable with all common colour blindness; their yellow is too pale for
lines."""

MARKERS = ("o", "s", "D", "v", "P", "X", "p", "^")
"""One more than there are colours, so that a pair of both does not repeat soon."""

# Five and eight markers have no common factor, so a line repeats only after forty
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.2, 1, 1.2)), (0, (4, 1.2, 1, 1.2, 1, 1.2)))
_FILLS = {Standing.EQUAL: "full", Standing.WORSE: "none", Standing.UNKNOWN: "bottom"}
_SIZE = 5.5  # Of the marks, in points: half a mark can be told from a whole one on paper


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw and save everything inside the block in this style, whatever the user's settings."""
    with matplotlib.rc_context(fname=Path(__file__).parent / "figures.mplstyle"):
        yield


def grid(
    panels: int, page: Venue = DEFAULT, *, columns: int = 3, height: float = PANEL_HEIGHT
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``panels`` axes: one in a single column, more side by side over the whole text width."""
    across = min(panels, columns, int(page.text / PANEL_WIDTH))
    down = -(-panels // across)
    figure = Figure(figsize=(page.single if panels == 1 else page.text, height * down), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def save_as(figure: Figure, path: Path) -> None:
    """Write ``.pdf`` (vector, fonts embedded) or ``.png``; the same figure gives the same bytes.

    Writing the first file fixes the layout, so that everything is at the same place in all further files.
    """
    with style():
        figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else {"Software": None})
        figure.set_layout_engine(None)  # "none" would keep a placeholder, for which every file is drawn twice


class MarkStyle(NamedTuple):
    """How the marks of one optimizer are distinguished from those of the others."""

    colour: str
    marker: str
    dashes: Any


def looks(names: Iterable[str]) -> dict[str, MarkStyle]:
    """Return the style of every name, in order; up to 40 names no two share marker and dashes, or colour and marker."""
    return {
        name: MarkStyle(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)])
        for index, name in enumerate(dict.fromkeys(names))
    }


def each(
    table: pd.DataFrame, *kinds: Any, column: str = "kind", after: Sequence[str] = ()
) -> Iterator[tuple[str, MarkStyle, list[pd.DataFrame]]]:
    """Yield every optimizer of a table, its style, and its rows of every kind; those in ``after`` have the first
    styles."""
    mark_styles = looks([*after, *table["optimizer"]])
    for name in table["optimizer"].unique():
        own = table[table["optimizer"] == name]
        yield name, mark_styles[name], [own[own[column] == kind] for kind in kinds]


def shades(values: Sequence[float]) -> dict[float, Any]:
    """Return one colour of a sequential colour map per distinct value, from light to dark, without the palest part."""
    distinct = sorted(set(values))
    positions = np.linspace(0.0, 0.75, len(distinct)) if len(distinct) > 1 else [0.35]
    colours = matplotlib.colormaps["viridis"]
    return {value: colours(0.75 - position) for value, position in zip(distinct, positions, strict=True)}


def shades_of_targets(values: Sequence[float], target: str) -> dict[float, Any]:
    """Return the shades of the values of targets, from the easiest, light, to the hardest, dark; ``target`` is one of
    them in words, such as ``"loss < 2.8"``."""
    order = sorted(set(values), reverse="<" in target)
    return dict(zip(order, shades(range(len(order))).values(), strict=True))


def curve(axes: Axes, rows: pd.DataFrame, x: str, y: str, look: MarkStyle, **line: Any) -> None:
    """Draw a line, with the band from ``low`` to ``high`` if every row has both; only the edges of a wide one, see
    :func:`is_wide`."""
    axes.plot(rows[x], rows[y], **{"color": look.colour, "linestyle": look.dashes, "zorder": 3} | line)
    if is_wide(rows):
        axes.plot(rows[x], rows[["low", "high"]].astype(float), ":", color=look.colour, linewidth=0.6, zorder=2)
    elif len(rows) and rows[["low", "high"]].notna().all(axis=None):
        band(axes, rows, x, look.colour)


def is_wide(rows: pd.DataFrame) -> bool:
    """Return whether the median ratio of the ends of a band is above :data:`WIDE_BAND`."""
    ends = rows[["low", "high"]].astype(float)
    return len(rows) > 0 and bool(ends.notna().all(axis=None) and (ends["high"] / ends["low"]).median() > WIDE_BAND)


def behind(axes: Axes, table: pd.DataFrame, x: str, y: str) -> list[Line2D]:
    """Draw the curves of the other optimizers in grey if each has a panel of its own; return the entry for a key."""
    others = table[table["kind"] == "other"]
    for _, line in others.groupby("other_of", sort=False) if len(others) else ():
        axes.plot(line[x], line[y], color=GREY, linewidth=0.6, alpha=0.5, zorder=1)
    return [mark("the other optimizers", linewidth=0.6, alpha=0.5)] if len(others) else []


def band(axes: Axes, rows: pd.DataFrame, along: str, colour: Any, *, axis: str = "x") -> None:
    """Shade from ``low`` to ``high`` along the ``"x"`` or the ``"y"`` axis."""
    fill = axes.fill_between if axis == "x" else axes.fill_betweenx
    fill(rows[along], rows["low"].astype(float), rows["high"].astype(float), color=colour, alpha=0.18, linewidth=0)


def points(axes: Axes, rows: pd.DataFrame, x: str, y: str, look: MarkStyle, *, aside: float = 1.0) -> None:
    """Draw marks with error bars from ``low`` to ``high``, and ``x_low`` to ``x_high`` if there are such columns.

    Where only one of ``low`` and ``high`` is known, an arrow points to the open side; where neither is, there is no
    bar. ``aside`` is a factor on ``x``.
    """
    across = _lengths(rows, x, "x_low", "x_high") if "x_low" in rows else None
    axes.errorbar(
        rows[x] * aside, rows[y], yerr=_lengths(rows, y, "low", "high"), xerr=across, fmt=look.marker,
        color=look.colour, elinewidth=0.7, zorder=4,
    )  # fmt: skip
    known = np.isfinite(rows[["low", "high"]].to_numpy(dtype=float))
    for at, value, (low, high) in zip(rows[x] * aside, rows[y], known, strict=True):
        if low != high:
            axes.annotate(
                "", (at, value), (0, OPEN_ARROW if low else -OPEN_ARROW), textcoords="offset points", zorder=4,
                arrowprops={"arrowstyle": "<-", "color": look.colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip


def _lengths(rows: pd.DataFrame, at: str, low: str, high: str) -> np.ndarray:
    """Return the lengths of bars down and up, shape ``[2, n]``."""
    lengths = np.array([rows[at] - rows[low].astype(float), rows[high].astype(float) - rows[at]], dtype=float)
    return np.where(lengths > 0, lengths, 0.0)


def percent(table: pd.DataFrame) -> str:
    """Return ``95 % interval``, at the confidence of a table."""
    return f"{100 * table['confidence'].iloc[0]:g} % interval"


def mark(label: str, **look: Any) -> Line2D:
    """Return the key entry of a label that does not refer to an optimizer."""
    return Line2D([], [], **{"color": GREY, "solid_capstyle": "butt"} | look, label=label)


def handle(label: str, look: MarkStyle, *, line: bool = True, **marks: Any) -> Line2D:
    """Return the key entry of the label of an optimizer."""
    return Line2D(
        [], [], color=look.colour, linestyle=look.dashes if line else "", marker=look.marker,
        label=literal(label), **marks,
    )  # fmt: skip


def standing_marks(table: pd.DataFrame, meanings: Sequence[str]) -> list[Line2D]:
    """Return key entries of the values of the column ``standing`` that occur; ``meanings`` are for equal, worse and
    neither."""
    return [
        mark(said, marker="o", markersize=_SIZE, linestyle="", fillstyle=fill, markerfacecoloralt="white")
        for said, (standing, fill) in zip(meanings, _FILLS.items(), strict=True)
        if (table["standing"] == standing).any()
    ]


def standing_points(axes: Axes, rows: pd.DataFrame, y: str, look: MarkStyle, *, aside: float = 1.0) -> None:
    """Draw a line through the rows of one optimizer against the batch size, times ``aside``, their intervals, and marks
    by their ``standing``."""
    axes.plot(rows["batch_size"] * aside, rows[y], color=look.colour, linestyle=look.dashes, zorder=3)
    bars = rows.dropna(subset=["low", "high"])
    axes.vlines(bars["batch_size"] * aside, bars["low"], bars["high"], color=look.colour, linewidth=0.7, zorder=3)
    for standing, part in rows.groupby("standing"):
        axes.plot(
            part["batch_size"] * aside, part[y], look.marker, color=look.colour, markersize=_SIZE, zorder=4,
            fillstyle=_FILLS[Standing(standing)], markerfacecoloralt="white",
        )  # fmt: skip
