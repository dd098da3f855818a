"""Best learning rate against batch size, with the law fitted to the optima."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.arrays import percentiles
from analysis.estimate.laws.learning_rate import Trend
from analysis.present import style
from analysis.present.figures import along, figure, tidy
from analysis.questions.lr.answer import LearningRate, LearningRates

_COLUMNS = ["panel", "optimizer", "kind", "batch_size", "lr", "low", "high", "example_unit", "tokens_per_example"]
_ALONG = 60


def compute(learning_rates: LearningRates) -> pd.DataFrame:
    """Return rows of three kinds (column ``kind``): ``optimum`` with its interval, ``bound`` at an edge of the grid,
    without the open end, and ``law`` along the law with its band."""
    return tidy([row for entry in learning_rates.entries for row in _rows(entry)], _COLUMNS)


def _rows(entry: LearningRate) -> Iterator[dict[str, Any]]:
    group, law = entry.answer.group, entry.law
    about = {
        "panel": f"{group.sweep}, {group.workload}, {style.words(str(entry.answer.target))}",
        "optimizer": group.optimizer,
        "example_unit": group.example_unit,
        "tokens_per_example": group.tokens_per_example,
        "confidence": law.confidence,
    }
    for at, half in zip(law.optima, law.half_widths, strict=True):
        ends = dict(zip(("low", "high"), at.interval(half), strict=True))
        yield about | {"kind": "bound" if at.edge else "optimum", "batch_size": at.batch_size, "lr": at.lr} | ends
    if law.trend is not Trend.UNKNOWN:
        sizes = np.geomspace(law.inside[0], law.inside[-1], _ALONG)
        lrs = np.exp(law.log_lrs(sizes))
        low, high = percentiles(lrs[1:], law.confidence)
        yield from (about | row for row in along("law", batch_size=sizes, lr=lrs[0], low=low, high=high))


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of the bounds, if there are any."""
    kinds = (
        ("high", "^", "at the upper edge of the grid: it lies there or above"),
        ("low", "v", "at the lower edge of the grid: it lies there or below"),
    )
    bounds = table[table["kind"] == "bound"]
    return [
        style.mark(label, marker=shape, linestyle="", markerfacecolor="white")
        for end, shape, label in kinds
        if bounds[end].isna().any()
    ]


@figure("best_learning_rate", of=LearningRates, compute=compute, panel="panel", marks=marks)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw optima and laws; points of several optimizers are offset, so that their intervals do not overlap."""
    sizes, key = table.loc[table["kind"] != "law", "batch_size"], []
    style.batch_axes(axes, table, table[["lr", "low", "high"]], "best learning rate", sizes)
    middle = (table["optimizer"].nunique() - 1) / 2
    for place, (name, look, (law, inside, bounds)) in enumerate(style.each(table, "law", "optimum", "bound")):
        aside = 1.06 ** (place - middle)
        style.curve(axes, law, "batch_size", "lr", look)
        style.points(axes, inside, "batch_size", "lr", look, aside=aside)
        for row in bounds.itertuples():
            shape = "^" if np.isnan(row.high) else "v"
            axes.plot(row.batch_size * aside, row.lr, shape, color=look.colour, markerfacecolor="white", zorder=4)
        key.append(style.handle(name, look, line=len(law) > 0))
    style.key(axes, key, table["batch_size"], table[["lr", "high"]].max(axis=1))
