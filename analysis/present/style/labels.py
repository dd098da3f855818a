"""Text beside marks and lines without overlaps: keys, labels at the ends of lines and at points."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from scipy.optimize import isotonic_regression

from analysis.present.style.scales import ink, size, width, wrapped_apart

SMALL = 7  # points
LINE = 1.25  # Line height relative to the font size

# Largest number of labels in a key within the axes
MOST_INSIDE = 6

# Smallest share of the height of the axes that is left for the data below a key within them
LEAST_DATA = 0.75

_KEY: Any = {"frameon": False, "handlelength": 2.2, "handletextpad": 0.5, "borderpad": 0.0}
_BETWEEN = 1.5  # between the columns of a key, as a multiple of the font size
# Distances in points between a mark and its label; beyond the first they are joined by a line
_REACHES = (4.0, 11.0, 18.0)

_FAR = np.repeat(_REACHES, 8)
_ANGLES = np.pi / 4 * np.arange(len(_FAR))
# Candidate positions of a label in order of preference: distance from the mark and direction
_TURNS = np.round(np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1), 3)


def spread(positions: Sequence[float], gap: float) -> np.ndarray:
    """Return positions moved as little as needed to lie at least ``gap`` apart and, if they fit, within [0, 1], in the
    same order."""
    count = len(positions)
    gap = min(gap, 1.0 / max(1, count - 1))
    order = np.argsort(positions, kind="stable")
    shift = gap * np.arange(count)
    moved = isotonic_regression(np.asarray(positions, dtype=float)[order] - shift).x
    placed = np.empty(count)
    placed[order] = np.clip(moved, 0.0, 1.0 - gap * (count - 1)) + shift
    return placed


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, Any]]) -> None:
    """Place labels in a column right of the axes, joined to the ends of their lines: x and y (data), text and colour of
    each.

    Limits and scales of the axes must be final. Long labels are broken if there is room, otherwise cut in the middle.
    """
    across, height = size(axes)
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    line = SMALL * LINE / 72 / height  # points to inches, to a share of the axes
    most = int(np.clip(1.0 / (line * max(1, len(ends))), 1, 3))
    texts = wrapped_apart([text for _, _, text, _ in ends], 0.45 * across, SMALL, lines=most)
    gap = line * max((text.count("\n") + 1 for text in texts), default=1)
    heights = spread([to_axes((x, y))[1] for x, y, _, _ in ends], gap)
    for (x, y, _, colour), text, place in zip(ends, texts, heights, strict=True):
        joint = {"arrowstyle": "-", "linewidth": 0.4, "color": colour, "alpha": 0.6, "relpos": (0, 0.5)}
        axes.annotate(
            text, (x, y), (1.04, place), textcoords="axes fraction", va="center", fontsize=SMALL, color=ink(colour),
            annotation_clip=False, arrowprops=joint | {"shrinkA": 1, "shrinkB": 2},
        )  # fmt: skip


def label_points(
    axes: Axes, labels: Sequence[tuple[float, float, str, Any]], marks: np.ndarray, lines: np.ndarray
) -> None:
    """Place labels beside their points where they cover no mark, no other label and as little of the lines as possible.

    Labels farther away are joined to their points, and one without any free place is left out; earlier ones choose
    first. Everything else about the figure must be final.

    Args:
        labels: x and y (data), text and colour of each.
        marks: positions to keep free, in data coordinates, shape ``[n, 2]``.
        lines: points along lines that should stay visible, in data coordinates, shape ``[n, 2]``.
    """
    figure = cast(Figure, axes.figure)
    if layout := figure.get_layout_engine():
        layout.execute(figure)

    def place(rows: Any) -> np.ndarray:
        return np.asarray(axes.transData.transform(np.asarray(rows, dtype=float).reshape(-1, 2))) * 72 / figure.dpi

    left, right = axes.get_window_extent().get_points() * 72 / figure.dpi
    marks, lines = place(marks), place(lines)
    taken: list[tuple[np.ndarray, np.ndarray]] = []
    for x, y, text, colour in labels:
        half, at = np.array([72 * width(text, SMALL - 1), SMALL - 1.0]) / 2, place((x, y))[0]
        offsets = _TURNS * (_FAR[:, None] + half)
        low, high = at + offsets - half - 1, at + offsets + half + 1
        free = ((low >= left) & (high <= right)).all(axis=1) & (_inside(marks, low - 2, high + 2) == 0)
        for start, end in taken:
            free &= ~((low < end) & (start < high)).all(axis=1)
        best = np.where(free, _FAR / 3 + _inside(lines, low, high), np.inf).argmin()
        if not free[best]:
            continue
        taken.append((low[best], high[best]))
        joint = {"arrowstyle": "-", "linewidth": 0.4, "color": colour, "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            text, (x, y), tuple(offsets[best]), textcoords="offset points", ha="center", va="center", zorder=5,
            fontsize=SMALL - 1, color=ink(colour), arrowprops=joint if _FAR[best] > _REACHES[0] else None,
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
        )  # fmt: skip


def _inside(points: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return how many points lie in each box."""
    within = (points > low[:, None]) & (points < high[:, None])
    return np.asarray(within.all(axis=2).sum(axis=1))


def key(axes: Axes, handles: Sequence[Line2D], x: Any, y: Any, *, title: str = "") -> None:
    """Draw a key in the upper corner that has more room; the y limit is raised if the data would run into it.

    Limits and scales of the axes must be final except for the upper y limit. A key with more than
    :data:`MOST_INSIDE` labels, with labels wider than the axes, or that would leave the data less than
    :data:`LEAST_DATA` of the height, is placed below the figure.

    Args:
        x: x values of the data, same length as ``y``.
        y: y values of the data; not finite where there is none.
        title: what the labels contain in addition to the names.
    """
    across, height = size(axes)
    longest = max(width(line, SMALL) for line in (title, *(str(handle.get_label()) for handle in handles)))
    if len(handles) > MOST_INSIDE or longest > 0.8 * across:
        below(cast(Figure, axes.figure), handles, title=title)
        return
    share = min(0.6, ((len(handles) + bool(title)) * SMALL * 1.4 + 8) / 72 / height)
    scale = axes.transScale.transform  # logarithms along a log axis
    (left, bottom), (right, top) = scale(np.column_stack([axes.get_xlim(), axes.get_ylim()]))
    taken = min(1.0, (longest + 0.45) / across)
    along, up = scale(np.column_stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)])).T
    position = (along - left) / (right - left)
    tops = {}
    for side, beside in (("right", position > 1.0 - taken), ("left", position < taken)):
        highest = up[beside & np.isfinite(up)].max(initial=bottom)
        tops[side] = max(top, bottom + (highest - bottom) / (1.0 - share))
    side = min(tops, key=tops.__getitem__)
    if top - bottom < LEAST_DATA * (tops[side] - bottom):
        below(cast(Figure, axes.figure), handles, title=title)
        return
    axes.set_ylim(top=axes.transScale.inverted().transform((left, tops[side]))[1])
    axes.legend(
        handles=list(handles), title=title or None, title_fontsize=SMALL, alignment=side, labelspacing=0.35,
        loc=cast(Any, f"upper {side}"), borderaxespad=0.4, labelcolor=[ink(line.get_color()) for line in handles],
        **_KEY,
    )  # fmt: skip


def below(figure: Figure, handles: Sequence[Line2D], *, title: str = "") -> None:
    """Explain the marks of all panels in rows below them, without repeating entries that are already there."""
    across, height = figure.get_size_inches()
    known: list[Line2D] = getattr(figure, "_said_below", [])
    known_labels = {str(handle.get_label()) for handle in known}
    new = [handle for handle in handles if str(handle.get_label()) not in known_labels]
    texts = wrapped_apart([str(handle.get_label()) for handle in new], across - 0.6, SMALL, lines=3)
    for handle, text in zip(new, texts, strict=True):
        handle.set_label(text)
    for legend in list(figure.legends):
        title = legend.get_title().get_text() or title
        legend.remove()
    handles = figure._said_below = [*known, *new]  # type: ignore[attr-defined]
    lines = [str(handle.get_label()).split("\n") for handle in handles]
    columns = _columns(lines, across)
    taller = (max(sum(map(len, part)) for part in columns) + bool(title)) * SMALL * 1.4 + 6
    figure.set_size_inches(across, height + (taller - getattr(figure, "_taller_below", 0.0)) / 72)
    figure._taller_below = taller  # type: ignore[attr-defined]
    figure.legend(
        handles=handles, title=title or None, title_fontsize=SMALL, loc="outside lower center", ncols=len(columns),
        labelspacing=0.35, columnspacing=_BETWEEN, **_KEY,
    )  # fmt: skip


def _columns(lines: Sequence[Sequence[str]], across: float) -> list[list[Sequence[str]]]:
    """Divide the entries of a key, lists of lines, as matplotlib does, among the most columns that fit into inches."""
    parts: list[list[Sequence[str]]] = []
    for count in range(len(lines), 0, -1):
        parts = [[lines[index] for index in part] for part in np.array_split(np.arange(len(lines)), count)]
        beside = count * (_KEY["handlelength"] + _KEY["handletextpad"]) + (count - 1) * _BETWEEN
        texts = sum(max(width(line, SMALL) for entry in part for line in entry) for part in parts)
        if texts + beside * SMALL / 72 <= across - 0.1:
            break
    return parts
