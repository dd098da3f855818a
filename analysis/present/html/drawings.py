"""The figures of the page, each with its caption and the table behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from markupsafe import Markup

from analysis.estimate.result import Answer
from analysis.present.figures import Scope, pictures, scopes
from analysis.present.html.content import of_frame
from analysis.present.html.vector import picture
from analysis.present.table import Table
from analysis.questions.analyze import Analysis

LONGEST_TABLE = 60
"""Rows of the table behind a figure that are shown; the download has all."""

FIRST = ("steps", "pareto", "definitions")
"""Figures that come before the others."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure of the page.

    Attributes:
        number: counts them, from 1.
        name: of its kind and scope, as the file names of ``cbs analyze``.
        title, caption: what is seen.
        drawing: the element.
        wide: whether it takes the whole width of the page.
        table: at most :data:`LONGEST_TABLE` rows of what was drawn.
        rows: how many there are.
        csv: all of them as a ``data:`` URI.
    """

    number: int
    name: str
    title: str
    caption: str
    drawing: Markup
    wide: bool
    table: Table
    rows: int
    csv: str


def drawings(found: Sequence[Answer]) -> list[tuple[Scope, list[Drawn]]]:
    """Every figure of every scope, numbered through."""
    pages: list[tuple[Scope, list[Drawn]]] = []
    number = 0
    for scope in scopes(found):
        drawn: list[Drawn] = []
        pages.append((scope, drawn))
        for shown in sorted(pictures(Analysis, scope.answers, scope.suffix), key=lambda shown: _order(shown.name)):
            number += 1
            kind, table, figure = shown.kind, shown.table, shown.kind.figure(shown.table)
            element = picture(figure, prefix=f"f{number}-", name=f"figure-{number}-title", description=kind.title)
            drawn.append(
                Drawn(
                    number=number,
                    name=shown.name,
                    title=kind.title,
                    caption=kind.said(table),
                    drawing=element,
                    wide=figure.get_size_inches()[0] > 4,
                    table=of_frame(table.head(LONGEST_TABLE)),
                    rows=len(table),
                    csv="data:text/csv;charset=utf-8," + quote(table.to_csv(index=False)),
                )
            )
    return pages


def _order(name: str) -> tuple[int, str]:
    kind = name.partition("-")[0]
    return (FIRST.index(kind) if kind in FIRST else len(FIRST), name)
