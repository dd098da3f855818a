"""Upper bounds on steps and examples against the batch size, for given constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.extensions.theory.bounds.given import GivenBound, GivenBounds
from analysis.present import style
from analysis.present.figures import along, figure, tidy

_ALONG = 120
_COLUMNS = ["panel", "kind", "optimizer", "batch_size", "value"]
_TALLEST = 1e4
"""Of a panel, highest over lowest: beside a pole the bounds have no end."""


def compute(bounds: GivenBounds) -> pd.DataFrame:
    """Rows of two kinds, see column ``kind``: ``bound`` along the batch size, ``best``, its b*."""
    sizes = min(bounds.batch_sizes), max(bounds.batch_sizes)
    return tidy([row for given in bounds.bounds for row in _rows(given, *sizes)], _COLUMNS)


def _rows(given: GivenBound, least: float, most: float) -> list[dict[str, Any]]:
    bound, pole = given.bound, given.bound.pole
    first = max(least - pole, 0.02 * pole)
    # densely beside the pole
    grid = pole + np.geomspace(first, most - pole, _ALONG) if pole + first < most else np.empty(0)
    best = np.array([bound.best_batch_size] if least <= bound.best_batch_size <= most else [])
    return [
        {"panel": f"{panel}, at most", "optimizer": given.label} | row
        for panel, of in (("steps", bound.steps), ("examples", bound.examples))
        for kind, sizes in (("bound", grid), ("best", best))
        for row in along(kind, batch_size=sizes, value=of(sizes))
    ]


def marks(table: pd.DataFrame) -> list[Line2D]:
    """The settings and the star."""
    handles = [style.handle(name, look._replace(marker="")) for name, look, _ in style.each(table)]
    return [*handles, style.mark("b*, fewest examples", marker="*", linestyle="", markersize=8)]


@figure("given_bounds", of=GivenBounds, compute=compute, panel="panel", marks=marks)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """One line per setting."""
    values = table["value"].clip(upper=_TALLEST * table["value"].min())
    label = table["panel"].iloc[0].split(",")[0]
    style.log_axes(axes, table["batch_size"], values, "batch size (examples)", label, most=5)
    for _, look, (line, best) in style.each(table, "bound", "best"):
        axes.plot(line["batch_size"], line["value"], color=look.colour, linestyle=look.dashes)
        axes.plot(best["batch_size"], best["value"], "*", color=look.colour, markersize=8, zorder=5)
