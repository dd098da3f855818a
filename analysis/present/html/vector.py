"""The figures of the page, with what belongs to them: SVG whose text stays text, or PNG where that is smaller."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import matplotlib
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from analysis.present import style
from analysis.present.figures import Picture
from analysis.present.style.scales import FONT
from analysis.present.table import Column, Table

LONGEST_TABLE = 60
"""Rows of the table behind a figure that are shown; the download has all."""

FIRST = ("steps", "pareto", "definitions")
"""Figures that come before the others."""

LARGEST = 400_000
"""Characters of SVG beyond which a figure is written as PNG: a browser is slow with so many marks."""

_FALLBACK = f"'{FONT}', Verdana, sans-serif"
"""Verdana has nearly the same widths, so labels keep their place where the font is missing."""

_GEOMETRY = ("d", "x", "y", "x1", "x2", "y1", "y2", "points", "transform", "width", "height", "viewBox")


def drawn(shown: Picture, number: int) -> Mapping[str, Any]:
    """A figure with its number on the page, its words, the table behind it, and that as a ``data:`` URI."""
    kind, frame, figure = shown.kind, shown.table, shown.kind.figure(shown.table)
    columns = [Column(name, heading=name, text=_text, left=True) for name in frame]
    return {
        "number": number,
        "name": shown.name,
        "title": kind.title,
        "caption": kind.said(frame),
        "drawing": picture(figure, prefix=f"f{number}-", name=f"figure-{number}-title", description=kind.title),
        "wide": figure.get_size_inches()[0] > 4,
        "table": Table(columns=tuple(columns), rows=frame.head(LONGEST_TABLE).to_dict("records")),
        "rows": len(frame),
        "csv": "data:text/csv;charset=utf-8," + quote(frame.to_csv(index=False)),
    }


def _text(value: object) -> str:
    return "" if pd.isna(value) else f"{value:.6g}" if isinstance(value, float) else str(value)


def picture(figure: Figure, *, prefix: str, name: str, description: str) -> Markup:
    """The figure as an element of a page.

    Args:
        figure: to be drawn; its size in inches is the size on a page of paper.
        prefix: put before every id of the SVG, so that several figures can share a page.
        name: id of the element that names it.
        description: what is seen, for those who do not see it.
    """
    with style.style():
        text = _svg(figure, prefix)
        if len(text) > LARGEST:
            return _png(figure, description)
    size = figure.get_size_inches()
    opening = Markup('<svg role="img" aria-labelledby="{}" viewBox="0 0 {} {}" width="{}" height="{}"').format(
        name, *(f"{72 * side:g}" for side in size), *(f"{96 * side:.0f}" for side in size)
    )
    return opening + Markup(text.removeprefix("<svg"))


def _svg(figure: Figure, prefix: str) -> str:
    """The drawing without what a page has no use for: name spaces, metadata, a style sheet for all elements."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in root.iter():
        for child in [child for child in parent if child.tag.endswith(("}metadata", "}style"))]:
            parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: _value(key, value, prefix) for key, value in element.attrib.items()}
        element.tail = None
        element.text = element.text if (element.text or "").strip() else None
    root.attrib = {}
    return ElementTree.tostring(root, encoding="unicode")


def _value(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return prefix + value
    if key.endswith("href"):
        return value.replace("#", f"#{prefix}", 1) if value.startswith("#") else value
    if key in _GEOMETRY:
        return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)
    return value.replace("url(#", f"url(#{prefix}").replace(f"'{FONT}'", _FALLBACK)


def _png(figure: Figure, description: str) -> Markup:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    width, height = (f"{96 * side:.0f}" for side in figure.get_size_inches())
    data = base64.b64encode(buffer.getvalue()).decode()
    return Markup('<img src="data:image/png;base64,{}" alt="{}" width="{}" height="{}">').format(
        data, escape(description), width, height
    )
