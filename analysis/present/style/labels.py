"""Words beside marks and lines, never on top of one another: keys, labels at the ends of lines and at points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from scipy.optimize import isotonic_regression

from analysis.present.style.scales import ink, size, width, wrapped_apart

SMALL = 7
LINE = 1.25
"""Height of a line over the font size."""

MOST_INSIDE = 6
"""Labels of a key within the axes."""

LEAST_DATA = 0.75
"""Share of the height of the axes that the data keep above a key within them."""

_KEY: Any = {"frameon": False, "handlelength": 2.2, "handletextpad": 0.5, "borderpad": 0.0}
_REACHES = (4.0, 11.0, 18.0)
"""Points between a mark and its label; beyond the first they are joined."""

_FAR = np.repeat(_REACHES, 8)
_ANGLES = np.pi / 4 * np.arange(len(_FAR))
_TURNS = np.round(np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1), 3)
"""Where a label may stand, in this order: as far from the mark, and in which direction."""


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
    """Labels in a column right of the axes, joined to the ends of their lines: x and y (data), text and colour of each.

    Limits and scales of the axes must be final. Long labels are broken where there is room, else cut in the middle.
    """
    across, height = size(axes)
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    line = SMALL * LINE / 72 / height
    most = int(np.clip(1.0 / (line * max(1, len(ends))), 1, 3))
    texts = wrapped_apart([text for _, _, text, _ in ends], 0.45 * across, SMALL, lines=most)
    gap = line * max((text.count("\n") + 1 for text in texts), default=1)
    places = spread([to_axes((x, y))[1] for x, y, _, _ in ends], gap)
    for (x, y, _, colour), text, place in zip(ends, texts, places, strict=True):
        joint = {"arrowstyle": "-", "linewidth": 0.4, "color": colour, "alpha": 0.6, "relpos": (0, 0.5)}
        axes.annotate(
            text, (x, y), (1.04, place), textcoords="axes fraction", va="center", fontsize=SMALL, color=ink(colour),
            annotation_clip=False, arrowprops=joint | {"shrinkA": 1, "shrinkB": 2},
        )  # fmt: skip


def label_points(
    axes: Axes, labels: Sequence[tuple[float, float, str, Any]], marks: np.ndarray, lines: np.ndarray
) -> None:
    """Labels beside their points, each where it covers no mark, no other label and least of the lines; those farther
    off are joined to their points, and one without any free place is left out. The first have the choice.

    All else about the figure must be final.

    Args:
        labels: x and y (data), text and colour of each.
        marks: to be kept free, data, shape ``[n, 2]``.
        lines: points along what should be kept free, data, shape ``[n, 2]``.
    """
    figure = cast(Figure, axes.figure)
    figure.draw_without_rendering()

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
    """How many points lie in every box."""
    within = (points > low[:, None]) & (points < high[:, None])
    return np.asarray(within.all(axis=2).sum(axis=1))


def key(axes: Axes, handles: Sequence[Line2D], x: Any, y: Any, *, title: str = "") -> None:
    """A key in the upper corner that has more room; the y limit is raised where the data would run into it.

    Limits and scales of the axes must be final but for the upper y limit. More than :data:`MOST_INSIDE` labels,
    longer ones than the axes are wide, and those that would leave the data less than :data:`LEAST_DATA` of the height
    go below the figure.

    Args:
        handles: labelled artists.
        x: of the data, same length as ``y``.
        y: of the data; not finite where there is none.
        title: what the labels hold beside the names.
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
    place = (along - left) / (right - left)
    tops = {}
    for side, beside in (("right", place > 1.0 - taken), ("left", place < taken)):
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
    """What the marks of all panels mean, in rows below them; what is said there already is not said again."""
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
    longest = max(width(line, SMALL) for label in lines for line in label) + 0.6
    columns = max(1, min(len(handles), int(across / longest)))
    rows = -(-sum(map(len, lines[len(known) :])) // columns) + (bool(title) and not known)
    figure.set_size_inches(across, height + (rows * SMALL * 1.4 + (0 if known else 6)) / 72)
    figure.legend(
        handles=handles, title=title or None, title_fontsize=SMALL, loc="outside lower center", ncols=columns,
        labelspacing=0.35, columnspacing=1.5, **_KEY,
    )  # fmt: skip
