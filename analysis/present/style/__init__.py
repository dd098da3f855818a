"""How figures look: the page, its fonts, and how figures are saved; :mod:`.looks` draws marks and lines, :mod:`.scales`
axes, :mod:`.labels` words beside them.

Figures are built with the object interface alone; nothing here touches the state of :mod:`matplotlib.pyplot`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# isort: off
from analysis import venues
from analysis.present.style.labels import SMALL, below, key, label_ends, label_points, spread
from analysis.present.style.lettering import FONT, literal, wrapped
from analysis.present.style.looks import (
    ALERT, COLOURS, GREY, MARKERS, Look, band, curve, each, handle, looks, points, shades,
)  # fmt: skip
from analysis.present.style.scales import (
    axis_label, batch_axes, log_axes, log_axis, log_limits, most_ticks, panel_title, plain, size, token_axis, words,
)  # fmt: skip
from analysis.venues import venue
# isort: on

PANEL_HEIGHT = 2.5
PANEL_WIDTH = 1.9
"""Least width of a panel, inches; narrower pages have fewer side by side."""

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
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "mathtext.default": "regular",
    "pdf.fonttype": 42,
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


def save_as(figure: Figure, path: Path) -> None:
    """Write ``.pdf`` (vector, fonts embedded) or ``.png``; the same figure gives the same bytes."""
    with style():
        figure.savefig(path, metadata={"CreationDate": None} if path.suffix == ".pdf" else {"Software": None})


__all__ = [
    "ALERT", "COLOURS", "GREY", "MARKERS", "SMALL", "Look", "axis_label", "band", "batch_axes", "below", "curve",
    "each", "grid", "handle", "key", "label_ends", "label_points", "literal", "log_axes", "log_axis", "log_limits",
    "looks", "most_ticks", "panel_title", "plain", "points", "save_as", "shades", "size", "spread", "style",
    "token_axis", "venue", "words", "wrapped",
]  # fmt: skip
