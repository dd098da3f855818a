"""What a notebook shows of an answer: its tables, the sentences below them, and its main figures."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from html import escape
from typing import Any

from analysis.present import presentation, style
from analysis.present.figures import figures_of
from analysis.present.table import Table

MOST = 2
"""Figures that are shown; the others are drawn by ``cbs`` and on the page of ``cbs report``."""


def html(result: Any) -> str:
    """Return what answers the question as HTML without scripts, styles and links."""
    presented = presentation(result)
    parts = [escape(part) if isinstance(part, str) else "\n".join(_table(part)) for part in presented.shown]
    parts += [f"<code>{escape(command)}</code>" for command in presented.then]
    parts += [_image(each.kind.figure(each.table)) for each in list(figures_of(result, every=False))[:MOST]]
    return "\n".join(f"<p>{part}</p>" for part in parts)


def _table(table: Table) -> Iterator[str]:
    """Yield the lines of a table as it stands on a terminal."""
    table = table.shown()
    if table.rows:
        yield f"<table><caption>{escape(table.title)}</caption>"
        yield f"<tr>{''.join(f'<th>{escape(column.heading)}</th>' for column in table.columns)}</tr>"
        for row in table.cells():
            cells = [escape(" ".join(filter(None, cell))) for cell in row]
            yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        yield "</table>"
    yield "<br>".join(map(escape, table.lines))


def _image(figure: Any) -> str:
    drawn = io.BytesIO()
    with style.style():
        figure.savefig(drawn, format="png", dpi=150)
    return f'<img src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}" width="480">'
