"""Figures: one file each, found by name; every one computes a table first and draws it second.

A drawn figure is saved as PDF and PNG, and the table behind it as CSV of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from cbs.registry import Registry

if TYPE_CHECKING:
    from analysis.answers import Answer


@dataclass(frozen=True)
class FigureKind:
    """A figure of the answers of one sweep, workload and target.

    Attributes:
        compute: answers -> the tidy table that is drawn; its column ``optimizer`` names the answer of a row.
        draw: draws a table on axes.
        panels: whether every optimizer has its own axes, ``draw`` then sees one optimizer at a time.
        by: with panels, the column that has the title of a row's panel.
        columns: most panels side by side.
        optional: whether to leave the figure out where its table is empty, because nobody asked for its data.
    """

    compute: Callable[[Sequence[Answer]], pd.DataFrame]
    draw: Callable[[Axes, pd.DataFrame], None]
    panels: bool = False
    by: str = "optimizer"
    columns: int = 3
    optional: bool = False

    def figure(self, table: pd.DataFrame) -> Figure:
        """The whole figure of ``table``."""
        with style.style():
            parts = [part for _, part in table.groupby(self.by, sort=False)] if self.panels and len(table) else [table]
            figure, axes = style.grid(len(parts), columns=self.columns)
            for place, part in zip(axes, parts, strict=True):
                self.draw(place, part)
                if self.panels and len(part):
                    place.set_title(part[self.by].iloc[0])
                cell = place.get_subplotspec()
                if cell and not cell.is_first_col():
                    place.set_ylabel("")
        return figure


FIGURES: Registry[FigureKind] = Registry("figure", "analysis.figures")


def write_all(answers: Sequence[Answer], folder: Path) -> list[str]:
    """Draw every figure of every (sweep, workload, target) into ``folder/figures``; returns the names relative to
    ``folder``."""
    place = folder / "figures"
    place.mkdir(parents=True, exist_ok=True)
    scopes: dict[tuple[str, str, str], list[Answer]] = {}
    for answer in answers:
        scopes.setdefault((answer.group.sweep, answer.group.workload, str(answer.target)), []).append(answer)
    written = []
    for scope, members in scopes.items():
        suffix = _suffix(scope, list(scopes))
        for name in FIGURES:
            kind = FIGURES[name]
            table = kind.compute(members)
            if kind.optional and table.empty:
                continue
            written += [f"figures/{file}" for file in write_one(kind, table, place, f"{name}{suffix}")]
    return written


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


__all__ = ["FIGURES", "FigureKind", "write_all"]
