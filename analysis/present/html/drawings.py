"""The figures of the page, each with its caption and the table behind it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from analysis.estimate.result import Answer
from analysis.present.figures import FigureKind, Scope, scopes
from analysis.present.html.content import of_frame, plain
from analysis.present.html.vector import picture
from analysis.present.table import Table

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
        for name, kind, table in sorted(scope.tables(), key=lambda entry: _order(entry[0])):
            number += 1
            figure = kind.figure(table)
            title = kind.title or name.replace("_", " ").capitalize()
            drawn.append(
                Drawn(
                    number=number,
                    name=f"{name}{scope.suffix}",
                    title=title,
                    caption=_caption(kind, table),
                    drawing=picture(figure, prefix=f"f{number}-", name=f"figure-{number}-title", description=title),
                    wide=figure.get_size_inches()[0] > 4,
                    table=of_frame(table.head(LONGEST_TABLE)),
                    rows=len(table),
                    csv="data:text/csv;charset=utf-8," + quote(table.to_csv(index=False)),
                )
            )
    return pages


def _order(name: str) -> tuple[int, str]:
    return (FIRST.index(name) if name in FIRST else len(FIRST), name)


def _caption(kind: FigureKind, table: pd.DataFrame) -> str:
    """That of the figure, else what its module says about itself."""
    if kind.caption and len(table):
        return kind.caption(table)
    return plain((sys.modules[kind.compute.__module__].__doc__ or "").strip().partition("\n\n")[0])
