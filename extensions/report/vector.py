"""Figures of the page with captions, data and values on hover: SVG with text kept as text, or PNG if it is smaller."""

import base64
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import matplotlib
import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.formatting import ends, number
from analysis.present import style
from analysis.present.figures import Picture
from analysis.present.style.scales import FONT
from analysis.present.table import Column, Table

LONGEST_TABLE = 60  # Number of rows shown of the table behind a figure; the download has all

FIRST = ("steps", "doubling", "pareto", "definitions")  # Figures that come before the others

# Number of characters of SVG above which a figure is written as PNG, because browsers are slow with so many marks
LARGEST = 400_000

# Verdana has nearly the same widths, so labels keep their positions if the font is missing
_FALLBACK = f"'{FONT}', Verdana, sans-serif"

_GEOMETRY, _LONG = re.compile(r'\b(d|[xy][12]?|points|transform|width|height)="[^"]*"'), re.compile(r"-?\d+\.\d{3,}")
_RADIUS = 5.0  # Radius of a circle in points, larger than the marks so that it is easy to hit
_BOUNDS = ("censored", "missed")  # Kinds of rows whose steps are lower bounds
_CLOSE = 1e-9  # Relative difference up to which a position on the axes is matched to a number of the table


def drawn(shown: Picture, number: int) -> Mapping[str, Any]:
    """Return a figure with its number on the page, its caption, the table behind it, and the table as a ``data:``
    URI."""
    kind, frame, figure = shown.kind, shown.table, shown.kind.figure(shown.table)
    columns = [Column(name, heading=name, text=_text, left=True) for name in frame]
    return {
        "number": number,
        "name": shown.name,
        "title": kind.title,
        "caption": kind.said(frame),
        "drawing": picture(
            figure, prefix=f"f{number}-", name=f"figure-{number}-title", description=kind.title, table=frame
        ),
        "wide": figure.get_size_inches()[0] > 4,
        "table": Table(columns=tuple(columns), rows=frame.head(LONGEST_TABLE).to_dict("records")),
        "rows": len(frame),
        "csv": "data:text/csv;charset=utf-8," + quote(frame.to_csv(index=False)),
    }


def _text(value: object) -> str:
    return "" if pd.isna(value) else f"{value:.6g}" if isinstance(value, float) else str(value)


def picture(figure: Figure, *, prefix: str, name: str, description: str, table: pd.DataFrame) -> Markup:
    """Return the figure as an HTML element, in the same size as on paper.

    ``prefix`` is prepended to every id of the SVG, so that several can share a page; ``name`` is the id of the element
    that names it, ``description`` a text for people who cannot see it, and ``table`` the data behind it.
    """
    with style.style():
        text = _svg(figure, prefix)
        text = text.removesuffix("</svg>\n").removesuffix("</svg>") + f"{values(figure, table)}</svg>"
        if len(text) > LARGEST:
            return _png(figure, description)
    size = figure.get_size_inches()
    opening = Markup('<svg role="img" aria-labelledby="{}" viewBox="0 0 {} {}" width="{}" height="{}"').format(
        name, *(f"{72 * side:g}" for side in size), *(f"{96 * side:.0f}" for side in size)
    )
    return opening + Markup(f">{text}")


def _svg(figure: Figure, prefix: str) -> str:
    """Return the content of the drawing, without metadata and global style sheet, which would affect the page."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    _, _, text = buffer.getvalue().partition("<svg")[2].partition(">")
    text = re.sub(r"<(metadata|style)\b.*?</\1>|(?<=>)\s+(?=<)|xlink:(?=href=)", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="|\bhref="#|\burl\(#', rf"\g<0>{prefix}", text)

    def rounded(number: re.Match[str]) -> str:
        return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")

    return _GEOMETRY.sub(lambda found: _LONG.sub(rounded, found[0]), text).replace(f"'{FONT}'", _FALLBACK)


def _png(figure: Figure, description: str) -> Markup:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    width, height = (f"{96 * side:.0f}" for side in figure.get_size_inches())
    data = base64.b64encode(buffer.getvalue()).decode()
    return Markup('<img src="data:image/png;base64,{}" alt="{}" width="{}" height="{}">').format(
        data, escape(description), width, height
    )


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
    positions = 72 / figure.dpi * np.array([mark[:2] for mark in marks]).reshape(-1, 2)
    circles = []
    for x, y in np.unique(positions, axis=0):
        near = np.hypot(*(positions - (x, y)).T) < _RADIUS  # a circle covers those below it
        text = "\n".join(dict.fromkeys(marks[index][2] for index in np.flatnonzero(near)))
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
            position = tuple(axes.transData.transform((x, y)).round(1).tolist())
            if not np.isfinite(position).all() or position in known or not axes.bbox.contains(*position):
                continue
            known.add(position)
            for row in _rows(x, y if labels[1] else None, numbers):
                yield *position, _words(x, y, labels, table.iloc[row])


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
