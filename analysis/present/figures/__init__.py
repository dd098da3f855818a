"""Figures: one file each, found by name; every one computes a table first and draws it second.

A drawn figure is saved as PDF and PNG, and the table behind it as CSV of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.estimate.result import Answer
from analysis.estimate.result import scopes as side_by_side
from analysis.present import style
from cbs.registry import Registry


@dataclass(frozen=True)
class FigureKind:
    """A figure of the answers of one sweep, workload and target.

    Attributes:
        compute: what is shown -> the tidy table that is drawn; in :data:`FIGURES` it takes the answers of one scope,
            and its column ``optimizer`` names the answer of a row.
        draw: draws a table on axes.
        panels: whether every optimizer has its own axes, ``draw`` then sees one optimizer at a time.
        by: with panels, the column that has the title of a row's panel.
        columns: most panels side by side.
        marks: table -> labelled artists that say, below the panels, what the marks mean.
        title: of the figure, a few words.
        caption: table -> what is seen, in which units.
        optional: whether to leave the figure out where its table is empty, because nobody asked for its data.
    """

    compute: Callable[..., pd.DataFrame]
    draw: Callable[[Axes, pd.DataFrame], None]
    panels: bool = False
    by: str = "optimizer"
    columns: int = 3
    marks: Callable[[pd.DataFrame], list[Line2D]] | None = None
    title: str = ""
    caption: Callable[[pd.DataFrame], str] | None = None
    optional: bool = False

    def figure(self, table: pd.DataFrame) -> Figure:
        """The whole figure of ``table``."""
        with style.style():
            parts = [part for _, part in table.groupby(self.by, sort=False)] if self.panels and len(table) else [table]
            figure, axes = style.grid(len(parts), columns=self.columns)
            for place, part in zip(axes, parts, strict=True):
                self.draw(place, part)
                if self.panels and len(part):
                    style.panel_title(place, str(part[self.by].iloc[0]))
                cell = place.get_subplotspec()
                if cell and not cell.is_first_col():
                    place.set_ylabel("")
            marks = self.marks(table) if self.marks else []
            if marks:
                style.symbols(figure, marks)
        return figure


FIGURES: Registry[FigureKind] = Registry("figure", "analysis.present.figures")


@dataclass(frozen=True)
class Scope:
    """What one figure of each kind is drawn of.

    Attributes:
        sweep, workload, target: which the answers share.
        suffix: what tells its files from those of the other scopes; empty where there is one.
        answers: at least one.
    """

    sweep: str
    workload: str
    target: str
    suffix: str
    answers: tuple[Answer, ...]

    def tables(self) -> Iterator[tuple[str, FigureKind, pd.DataFrame]]:
        """Name, kind and table of every figure there is something to draw of."""
        for name in FIGURES:
            kind = FIGURES[name]
            table = kind.compute(self.answers)
            if not (kind.optional and table.empty):
                yield name, kind, table


def scopes(answers: Sequence[Answer]) -> list[Scope]:
    """The answers of every (sweep, workload, target), in their order."""
    members = side_by_side(answers)
    return [Scope(*scope, _suffix(scope, list(members)), tuple(found)) for scope, found in members.items()]


def write_all(answers: Sequence[Answer], folder: Path) -> list[str]:
    """Draw every figure of every (sweep, workload, target) into ``folder/figures``; returns the names relative to
    ``folder``."""
    place = folder / "figures"
    place.mkdir(parents=True, exist_ok=True)
    return [
        f"figures/{file}"
        for scope in scopes(answers)
        for name, kind, table in scope.tables()
        for file in write_one(kind, table, place, f"{name}{scope.suffix}")
    ]


def write_one(kind: FigureKind, table: pd.DataFrame, folder: Path, name: str) -> list[str]:
    """Draw ``table`` into ``folder`` as ``name.pdf`` and ``name.png``, and save it as ``name.csv``; returns the
    names."""
    table.to_csv(folder / f"{name}.csv", index=False)
    with style.style():
        return [*style.save(kind.figure(table), folder, name), f"{name}.csv"]


def _suffix(scope: tuple[str, str, str], scopes: Sequence[tuple[str, str, str]]) -> str:
    """What tells the files of one scope from those of the others; empty when there is one."""
    parts = [part for index, part in enumerate(scope) if len({other[index] for other in scopes}) > 1]
    words = [part.replace("<", "below").replace(">", "above") for part in parts]
    return "".join("-" + re.sub(r"[^A-Za-z0-9.]+", "_", word).strip("_") for word in words)


__all__ = ["FIGURES", "FigureKind", "Scope", "scopes", "write_all", "write_one"]
