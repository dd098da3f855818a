"""Values behind every mark of a figure, as titles of invisible circles on the marks, which a browser shows on hover
without a script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.phrases import ends, number

_RADIUS = 5.0
"""Radius of a circle in points, larger than the marks so that it is easy to hit."""

_BOUNDS = ("censored", "missed")
"""Kinds of rows whose steps are lower bounds."""

_CLOSE = 1e-9
"""Relative difference up to which a position on the axes is matched to a number of the table."""


def values(figure: Figure, table: pd.DataFrame) -> Markup:
    """Return circles for every mark inside its axes that represents a row of the table.

    The figure must have been saved, so that everything has its final position. Marks drawn elsewhere than at their
    value, such as the arrow of an open end, have none.

    Args:
        figure: figure drawn from ``table``.
        table: table that says what each mark represents.
    """
    height = 72 * figure.get_size_inches()[1]
    marks = [mark for axes in figure.axes for mark in _marks(axes, figure, table)]
    places = 72 / figure.dpi * np.array([mark[:2] for mark in marks]).reshape(-1, 2)
    circles = []
    for x, y in np.unique(places, axis=0):
        near = np.hypot(*(places - (x, y)).T) < _RADIUS  # a circle covers those below it
        text = "\n".join(dict.fromkeys(marks[place][2] for place in np.flatnonzero(near)))
        circle = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{:g}"><title>{}</title></circle>')
        circles.append(circle.format(x, height - y, _RADIUS, text))
    return Markup('<g class="values">{}</g>').format(Markup("").join(circles)) if circles else Markup("")


def _marks(axes: Axes, figure: Figure, table: pd.DataFrame) -> Iterator[tuple[float, float, str]]:
    """Yield position in pixels and text of every mark of the axes, once for every row at that position."""
    known: set[tuple[float, float]] = set()
    numbers = table.select_dtypes("number").to_numpy(float)
    labels = _label(axes, figure, "x"), _label(axes, figure, "y")
    for line in axes.lines:
        if line.get_marker() in ("None", "", " ", None, "|") or line.get_transform() != axes.transData:
            continue
        for x, y in np.asarray(line.get_xydata(), dtype=float):
            place = tuple(axes.transData.transform((x, y)).round(1).tolist())
            if not np.isfinite(place).all() or place in known or not axes.bbox.contains(*place):
                continue
            known.add(place)
            for row in _rows(x, y if labels[1] else None, numbers):
                yield *place, _words(x, y, labels, table.iloc[row])


def _rows(x: float, y: float | None, numbers: np.ndarray) -> np.ndarray:
    """Return the rows that contain both numbers, or the only row that contains the first if the other axis has none."""
    holds = np.isclose(numbers, x, rtol=_CLOSE, atol=0).any(axis=1)
    if y is None:
        return np.flatnonzero(holds if holds.sum() == 1 else [])
    return np.flatnonzero(holds & np.isclose(numbers, y, rtol=_CLOSE, atol=0).any(axis=1))


def _words(x: float, y: float, labels: tuple[str, str], row: pd.Series) -> str:
    facts: dict[str, Any] = row.dropna().to_dict()
    who = [str(facts[name]) for name in ("optimizer", "form") if name in facts]
    who += [str(facts["label"])] if not labels[1] and "label" in facts else []
    side = "less" if facts.get("kind") == "at_most" or facts.get("at_most") is True else "more"
    lower = facts.get("kind") in _BOUNDS or any(facts.get(name) == y for name in facts if name.endswith("lower_bound"))
    bound = lower or side == "less"
    interval = "" if bound else ends((facts.get("low"), facts.get("high")))
    parts = [f"{labels[0]} {number(x, 4)}"]
    parts += [f"{labels[1]} {f'{side} than ' if bound else ''}{number(y, 4)}"] if labels[1] else []
    return f"{', '.join(who)}{': ' if who else ''}{', '.join(parts)} {interval}".strip()


def _label(axes: Axes, figure: Figure, axis: str) -> str:
    """Return the label of an axis, or that of its neighbours if it is given only once for all."""
    texts = [getattr(each, f"get_{axis}label")() for each in (axes, *figure.axes)]
    common = getattr(figure, f"get_sup{axis}label")()
    return " ".join(next(filter(None, [*texts, common]), "").replace(r"\$", "$").split())
