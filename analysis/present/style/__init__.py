"""How figures look: sizes, fonts, colours, direct labels, and how they are saved.

Figures are built with the object interface alone; nothing here touches the state of :mod:`matplotlib.pyplot`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from scipy.optimize import isotonic_regression

from analysis import venues
from analysis.present.style.lettering import FONT, ink, literal, width, wrapped
from analysis.venues import venue as venue

PANEL_HEIGHT = 2.5
PANEL_WIDTH = 1.9
"""Least width of a panel, inches; narrower pages have fewer side by side."""

LINE = 1.25
"""Height of a line over the font size."""

SMALL = 7
MOST_INSIDE = 7
"""Labels of a key within the axes."""

TALL_PANEL = 3.6
"""Height of a panel with more labels than that, inches."""

GREY, ALERT = "#7f7f7f", "#d00000"

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito (2008), told apart with every common colour blindness; their yellow is too pale for lines."""

MARKERS = ("o", "s", "D", "v", "P", "X", "p")

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.2, 1, 1.2)))

_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": [FONT],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "mathtext.default": "regular",
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
    "figure.dpi": 100,
    "savefig.dpi": 200,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Everything drawn and saved inside has the one style."""
    with matplotlib.rc_context(cast(Any, _RC)):
        yield


def grid(panels: int, *, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure with ``panels`` axes: one in a single column, more side by side over the whole text of the venue."""
    page = venues.current()
    across = min(panels, columns, int(page.text / PANEL_WIDTH))
    down = -(-panels // across)
    figure = Figure(figsize=(page.single if panels == 1 else page.text, PANEL_HEIGHT * down), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def save(figure: Figure, folder: Path, name: str) -> list[str]:
    """Write ``name.pdf`` and ``name.png``, see :func:`save_as`. Returns the names."""
    names = [f"{name}.pdf", f"{name}.png"]
    for file in names:
        save_as(figure, folder / file)
    return names


def save_as(figure: Figure, path: Path) -> None:
    """Write ``.pdf`` (vector, fonts embedded) or ``.png``; the same figure gives the same bytes."""
    if path.suffix == ".pdf":
        figure.savefig(path, metadata={"CreationDate": None})
    else:
        figure.savefig(path, dpi=200, metadata={"Software": None})


def looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of every optimizer, in their order; no two share both up to 49."""
    distinct = list(dict.fromkeys(names))
    rounds = [divmod(index, len(COLOURS)) for index in range(len(distinct))]
    return {
        name: (COLOURS[place], MARKERS[(place + turn) % len(MARKERS)])
        for name, (turn, place) in zip(distinct, rounds, strict=True)
    }


def dashes(names: Sequence[str]) -> dict[str, Any]:
    """Line style of every optimizer, in their order: another one where a colour comes again."""
    distinct = list(dict.fromkeys(names))
    return {name: DASHES[index // len(COLOURS) % len(DASHES)] for index, name in enumerate(distinct)}


def shades(values: Sequence[float]) -> dict[float, Any]:
    """One colour of a sequential map per distinct value, light to dark without the palest part."""
    distinct = sorted(set(values))
    positions = np.linspace(0.0, 0.75, len(distinct)) if len(distinct) > 1 else [0.35]
    return {
        value: matplotlib.colormaps["viridis"](0.75 - position)
        for value, position in zip(distinct, positions, strict=True)
    }


def plain(value: float) -> str:
    """A tick label: 256, 4096, 20k, 3M; below one up to two digits."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[suffix]:.4g}{suffix}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def log_axis(
    axis: Any,
    values: Sequence[float] | pd.Series | None = None,
    *,
    most: int = 6,
    span: tuple[float, float] | None = None,
) -> None:
    """A log axis with plain numbers: ticks at ``values`` where given, else at powers of ten and, where the range is
    short, at 2 and 5 or 3 times these; about ``most`` of them."""
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    if values is not None and len(values):
        distinct = sorted(set(values))
        axis.set_major_locator(FixedLocator(distinct[:: -(-len(distinct) // most)]))
        return
    low, high = span or axis.get_view_interval()
    decades = np.log10(high / low)
    subs: tuple[float, ...] = next(
        (subs for subs in ((1.0, 2.0, 5.0), (1.0, 3.0)) if decades * len(subs) <= most + 0.5), (1.0,)
    )
    if decades < 0.8:
        subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=20))


def log_limits(
    values: Sequence[float] | np.ndarray, *, below: float = 0.06, above: float = 0.06
) -> tuple[float, float]:
    """Limits of a log axis around the finite positive ``values``, with margins as shares of the range."""
    usable = np.asarray(values, dtype=float)
    usable = usable[np.isfinite(usable) & (usable > 0)]
    if not len(usable):
        return 0.5, 2.0
    low, high = np.log(usable.min()), np.log(usable.max())
    span = max(high - low, 0.7)
    low, high = (low, high) if high - low >= 0.7 else ((low + high - 0.7) / 2, (low + high + 0.7) / 2)
    return float(np.exp(low - below * span)), float(np.exp(high + above * span))


def spread(positions: Sequence[float], gap: float) -> np.ndarray:
    """Positions moved as little as needed to lie at least ``gap`` apart and, if they fit, within [0, 1]; order is
    kept."""
    count = len(positions)
    gap = min(gap, 1.0 / max(1, count - 1))
    order = np.argsort(positions, kind="stable")
    shift = gap * np.arange(count)
    moved = isotonic_regression(np.asarray(positions, dtype=float)[order] - shift).x
    placed = np.empty(count)
    placed[order] = np.clip(moved, 0.0, 1.0 - gap * (count - 1)) + shift
    return placed


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, Any]]) -> None:
    """Labels in a column right of the axes, joined to the ends of their lines, never on top of one another.

    Limits and scales of the axes must be final. Long labels are broken where there is room, else cut in the middle.

    Args:
        axes: where.
        ends: x and y (data), text and colour of each.
    """
    across, height = size(axes)
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    line = SMALL * LINE / 72 / height
    most = int(np.clip(1.0 / (line * max(1, len(ends))), 1, 3))
    texts = [wrapped(text, 0.45 * across, SMALL, lines=most) for _, _, text, _ in ends]
    gap = line * max((text.count("\n") + 1 for text in texts), default=1)
    places = spread([to_axes((x, y))[1] for x, y, _, _ in ends], gap)
    for (x, y, _, colour), text, place in zip(ends, texts, places, strict=True):
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(1.04, place),
            textcoords="axes fraction",
            va="center",
            fontsize=SMALL,
            color=ink(colour),
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.4,
                "color": colour,
                "alpha": 0.6,
                "shrinkA": 1,
                "shrinkB": 2,
                "relpos": (0, 0.5),
            },
        )


def key(
    axes: Axes,
    handles: Sequence[Line2D],
    x: Sequence[float] | pd.Series,
    y: Sequence[float] | pd.Series,
    *,
    title: str = "",
) -> None:
    """A frameless key in the upper right corner; the y limit is raised where the data would run into it.

    Limits and scales (log) of the axes must be final but for the upper y limit. More than :data:`MOST_INSIDE` labels go
    beside the axes, and the figure then takes the whole text; labels too long for either go below.

    Args:
        axes: where.
        handles: labelled artists.
        x: of the data, same length as ``y``.
        y: of the data; not finite where there is none.
        title: what the labels hold beside the names.
    """
    figure, across, height = cast(Figure, axes.figure), *size(axes)
    page = venues.current()
    longest = max(width(line, SMALL) for line in (title, *(str(handle.get_label()) for handle in handles)))
    look: dict[str, Any] = {
        "title": title or None, "title_fontsize": SMALL, "frameon": False, "handletextpad": 0.5, "borderpad": 0.0,
        "labelcolor": [ink(handle.get_color()) for handle in handles],
    }  # fmt: skip
    if longest > (0.45 * page.text if len(handles) > MOST_INSIDE else 0.85 * across):
        for handle in handles:
            handle.set_label(wrapped(str(handle.get_label()), page.single - 0.5, SMALL, lines=3))
        lines = sum(str(handle.get_label()).count("\n") + 1.4 for handle in handles) + bool(title)
        figure.set_size_inches(page.single, figure.get_size_inches()[1] + lines * SMALL * LINE / 72)
        figure.legend(handles=list(handles), loc="outside lower left", handlelength=1.6, alignment="left", **look)
        return
    if len(handles) > MOST_INSIDE:
        figure.set_size_inches(page.text, TALL_PANEL)
        figure.legend(
            handles=list(handles), alignment="left", loc="outside right upper", handlelength=1.6, borderaxespad=0.4,
            labelspacing=0.5, **look,
        )  # fmt: skip
        return
    share = min(0.6, ((len(handles) + bool(title)) * SMALL * 1.4 + 8) / 72 / height)
    (left, right), (bottom, top) = np.log(axes.get_xlim()), np.log(axes.get_ylim())
    taken = min(1.0, (longest + 0.35) / across)
    beside = (np.log(np.asarray(x)) > right - taken * (right - left)) & np.isfinite(y)
    if beside.any():
        highest = np.log(np.asarray(y)[beside]).max()
        top = max(top, bottom + (highest - bottom) / (1.0 - share))
    axes.set_ylim(np.exp(bottom), np.exp(top))
    axes.legend(
        handles=list(handles), alignment="right", loc="upper right", handlelength=1.4, borderaxespad=0.4,
        labelspacing=0.35, **look,
    )  # fmt: skip


def symbols(figure: Figure, handles: Sequence[Line2D]) -> None:
    """What the marks of all panels mean, in rows below them."""
    across = figure.get_size_inches()[0]
    for handle in handles:
        handle.set_label(wrapped(str(handle.get_label()), across - 0.6, SMALL, lines=3))
    labels = [str(handle.get_label()) for handle in handles]
    longest = max(width(line, SMALL) for label in labels for line in label.split("\n")) + 0.45
    columns = max(1, min(len(handles), int(across / longest)))
    rows = -(-sum(label.count("\n") + 1 for label in labels) // columns)
    figure.set_size_inches(across, figure.get_size_inches()[1] + (rows * SMALL * 1.4 + 6) / 72)
    figure.legend(
        handles=list(handles), loc="outside lower center", ncols=columns, frameon=False, handlelength=1.6,
        handletextpad=0.5, borderpad=0.0, labelspacing=0.35, columnspacing=1.5,
    )  # fmt: skip


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


def token_axis(axes: Axes, tokens_per_example: pd.Series, *, axis: str = "x", quantity: str = "batch size") -> None:
    """A second axis in tokens, where an example is the same number of tokens in every row."""
    tokens = tokens_per_example.dropna().unique()
    if len(tokens) != 1 or tokens_per_example.isna().any() or tokens[0] <= 1:
        return
    factor = float(tokens[0])
    functions = (lambda value: value * factor, lambda value: value / factor)
    second = (
        axes.secondary_xaxis("top", functions=functions)
        if axis == "x"
        else axes.secondary_yaxis("right", functions=functions)
    )
    place = second.xaxis if axis == "x" else second.yaxis
    low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
    second.spines[:].set_visible(True)
    log_axis(place, span=(low * factor, high * factor))
    place.set_label_text(f"{quantity} (tokens)")


def words(target: str) -> str:
    """A target as it stands on an axis."""
    return target.replace("_", " ")


def size(axes: Axes) -> tuple[float, float]:
    """Width and height of the axes in inches, about; labels and ticks take the rest of their cell of the grid."""
    figure, cells = cast(Figure, axes.figure), axes.get_gridspec()
    width, height = figure.get_size_inches()
    across, down = (cells.ncols, cells.nrows) if cells else (1, 1)
    return width / across - 0.6, height / down * 0.7


def halo() -> list[Any]:
    """Path effects that keep a label readable on a line."""
    return [withStroke(linewidth=1.8, foreground="white")]


def empty(axes: Axes, text: str) -> None:
    """Say in words why there is nothing to draw."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=SMALL, color=GREY, wrap=True)
