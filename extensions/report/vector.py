"""Figures of the page with their captions and data: SVG with text kept as text, or PNG if that is smaller."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import matplotlib
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from analysis.present import style
from analysis.present.figures import Picture
from analysis.present.style.scales import FONT
from analysis.present.table import Column, Table
from extensions.report.hover import values

LONGEST_TABLE = 60
"""Number of rows shown of the table behind a figure; the download has all."""

FIRST = ("steps", "doubling", "pareto", "definitions")
"""Figures that come before the others."""

LARGEST = 400_000
"""Number of characters of SVG above which a figure is written as PNG, because browsers are slow with so many marks."""

_FALLBACK = f"'{FONT}', Verdana, sans-serif"
"""Verdana has nearly the same widths, so labels keep their positions if the font is missing."""

_GEOMETRY, _LONG = re.compile(r'\b(d|[xy][12]?|points|transform|width|height)="[^"]*"'), re.compile(r"-?\d+\.\d{3,}")


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
