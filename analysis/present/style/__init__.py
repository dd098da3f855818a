"""How figures look: the page, its fonts, marks and lines, and how figures are saved; :mod:`.scales` draws axes,
:mod:`.labels` words beside marks. An optimizer keeps colour, marker and dashes in every panel, unless it has one of its
own; none is told by its colour alone.

Figures are built with the object interface alone; nothing here touches the state of :mod:`matplotlib.pyplot`.
"""

from __future__ import annotations

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
from analysis.present.style.labels import SMALL, below, key, label_ends, label_points, spread
from analysis.present.style.scales import (
    axis_label, batch_axes, data_scale, literal, log_axes, log_axis, log_scale, most_ticks, near, plain,
    size, token_axis, width, words, wrapped, wrapped_apart,
)  # fmt: skip
from analysis.page_widths import DEFAULT, Venue
# isort: on

PANEL_HEIGHT = 2.5
LOW_PANEL = 1.7
"""Height of the panels where there are many, inches."""
PANEL_WIDTH = 1.9
"""Least width of a panel, inches; narrower pages have fewer side by side."""

WIDE_BAND = 10.0
"""Median ratio of the ends of a band beyond which it is drawn as its edges: filled it would cover everything."""

GREY, ALERT = "#7f7f7f", "#d00000"

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito (2008), told apart with every common colour blindness; their yellow is too pale for lines."""

MARKERS = ("o", "s", "D", "v", "P", "X", "p", "^")
"""One more than there are colours, so that no pair of both comes again soon."""

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.2, 1, 1.2)), (0, (4, 1.2, 1, 1.2, 1, 1.2)))


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Everything drawn and saved inside has the one style, whatever the settings of the user."""
    with matplotlib.rc_context(fname=Path(__file__).parent / "figures.mplstyle"):
        yield


def grid(
    panels: int, page: Venue = DEFAULT, *, columns: int = 3, height: float = PANEL_HEIGHT
) -> tuple[Figure, list[Axes]]:
    """A figure with ``panels`` axes: one in a single column, more side by side over the whole text of the page."""
    across = min(panels, columns, int(page.text / PANEL_WIDTH))
    down = -(-panels // across)
    figure = Figure(figsize=(page.single if panels == 1 else page.text, height * down), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def save_as(figure: Figure, path: Path) -> None:
    """Write ``.pdf`` (vector, fonts embedded) or ``.png``; the same figure gives the same bytes. The first file lays it
    out: in every further one all stands in the same places."""
    with style():
        figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else {"Software": None})
        figure.set_layout_engine("none")


class MarkStyle(NamedTuple):
    """How the marks of one optimizer are told from those of the others."""

    colour: str
    marker: str
    dashes: Any


def looks(names: Iterable[str]) -> dict[str, MarkStyle]:
    """The look of every name, in their order; no two share marker and dashes up to 40, nor colour and marker."""
    return {
        name: MarkStyle(COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)])
        for index, name in enumerate(dict.fromkeys(names))
    }


def each(
    table: pd.DataFrame, *kinds: Any, column: str = "kind", after: Sequence[str] = ()
) -> Iterator[tuple[str, MarkStyle, list[pd.DataFrame]]]:
    """Every optimizer of a table, its look, and its rows of every kind; ``after`` have the first looks."""
    mark_styles = looks([*after, *table["optimizer"]])
    for name in table["optimizer"].unique():
        own = table[table["optimizer"] == name]
        yield name, mark_styles[name], [own[own[column] == kind] for kind in kinds]


def shades(values: Sequence[float]) -> dict[float, Any]:
    """One colour of a sequential map per distinct value, light to dark without the palest part."""
    distinct = sorted(set(values))
    positions = np.linspace(0.0, 0.75, len(distinct)) if len(distinct) > 1 else [0.35]
    colours = matplotlib.colormaps["viridis"]
    return {value: colours(0.75 - position) for value, position in zip(distinct, positions, strict=True)}


def curve(axes: Axes, rows: pd.DataFrame, x: str, y: str, look: MarkStyle, **line: Any) -> None:
    """A line with the band from ``low`` to ``high`` where every row has both; of a wide one, see :func:`is_wide`, the
    edges alone."""
    axes.plot(rows[x], rows[y], **{"color": look.colour, "linestyle": look.dashes, "zorder": 3} | line)
    if is_wide(rows):
        axes.plot(rows[x], rows[["low", "high"]].astype(float), ":", color=look.colour, linewidth=0.6, zorder=2)
    elif len(rows) and rows[["low", "high"]].notna().all(axis=None):
        band(axes, rows, x, look.colour)


def is_wide(rows: pd.DataFrame) -> bool:
    """Whether the ends of a band are more than :data:`WIDE_BAND` apart at most of its rows."""
    ends = rows[["low", "high"]].astype(float)
    return len(rows) > 0 and bool(ends.notna().all(axis=None) and (ends["high"] / ends["low"]).median() > WIDE_BAND)


def behind(axes: Axes, table: pd.DataFrame, x: str, y: str) -> list[Line2D]:
    """The curves of the other optimizers, grey, where each has a panel of its own; what says so in a key."""
    others = table[table["kind"] == "other"]
    for _, line in others.groupby("other_of", sort=False) if len(others) else ():
        axes.plot(line[x], line[y], color=GREY, linewidth=0.6, alpha=0.5, zorder=1)
    return [mark("the other optimizers", linewidth=0.6, alpha=0.5)] if len(others) else []


def drop_line(axes: Axes, rows: pd.DataFrame, at: float, look: MarkStyle) -> None:
    """A dotted line from the x axis at a batch size up to the ``steps`` of a curve."""
    steps = np.exp(np.interp(np.log(at), np.log(rows["batch_size"]), np.log(rows["steps"])))
    axes.plot([at] * 2, [axes.get_ylim()[0], steps], ":", color=look.colour, linewidth=0.9, zorder=2)


def band(axes: Axes, rows: pd.DataFrame, along: str, colour: Any, *, axis: str = "x") -> None:
    """From ``low`` to ``high`` along the ``"x"`` or the ``"y"`` axis."""
    fill = axes.fill_between if axis == "x" else axes.fill_betweenx
    fill(rows[along], rows["low"].astype(float), rows["high"].astype(float), color=colour, alpha=0.18, linewidth=0)


def points(axes: Axes, rows: pd.DataFrame, x: str, y: str, look: MarkStyle, *, aside: float = 1.0) -> None:
    """Marks with bars from ``low`` to ``high``, and ``x_low`` to ``x_high`` where there are such; an unknown end has no
    bar. ``aside`` is a factor on ``x``."""
    across = _lengths(rows, x, "x_low", "x_high") if "x_low" in rows else None
    axes.errorbar(
        rows[x] * aside, rows[y], yerr=_lengths(rows, y, "low", "high"), xerr=across, fmt=look.marker,
        color=look.colour, elinewidth=0.7, zorder=4,
    )  # fmt: skip


def _lengths(rows: pd.DataFrame, at: str, low: str, high: str) -> np.ndarray:
    """Of bars down and up, shape ``[2, n]``."""
    lengths = np.array([rows[at] - rows[low].astype(float), rows[high].astype(float) - rows[at]], dtype=float)
    return np.where(lengths > 0, lengths, 0.0)


def percent(table: pd.DataFrame) -> str:
    """``95 % interval``, at the confidence of a table."""
    return f"{100 * table['confidence'].iloc[0]:g} % interval"


def mark(label: str, **look: Any) -> Line2D:
    """What stands in a key before a label that is not about one optimizer."""
    return Line2D([], [], **{"color": GREY} | look, label=label)


def handle(label: str, look: MarkStyle, *, line: bool = True, **marks: Any) -> Line2D:
    """What stands in a key before the label of an optimizer."""
    return Line2D(
        [], [], color=look.colour, linestyle=look.dashes if line else "", marker=look.marker,
        label=literal(label), **marks,
    )  # fmt: skip


__all__ = [
    "ALERT", "COLOURS", "GREY", "MARKERS", "SMALL", "MarkStyle", "axis_label", "band", "batch_axes", "behind", "below",
    "curve", "data_scale", "drop_line", "each", "grid", "handle", "is_wide", "key", "label_ends", "label_points",
    "literal", "log_axes",
    "log_axis", "log_scale", "looks", "mark", "most_ticks", "near", "percent", "plain", "points",
    "save_as", "shades", "size", "spread", "style", "token_axis", "width", "words", "wrapped", "wrapped_apart",
]  # fmt: skip
