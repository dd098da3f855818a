"""Best learning rate against batch size, with the law through the optima."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.laws.learning_rate import Trend
from analysis.present import style
from analysis.present.figures import FigureKind

if TYPE_CHECKING:
    from analysis.questions.learning_rate import LearningRate

_COLUMNS = ["panel", "optimizer", "kind", "batch_size", "lr", "low", "high", "example_unit", "tokens_per_example"]
_ALONG = 60


def compute(entries: Sequence[LearningRate]) -> pd.DataFrame:
    """Rows of three kinds, see column ``kind``: ``optimum`` with its interval, ``bound`` at an edge of the grid, with
    the open end missing, ``law`` along the law with its band."""
    rows: list[dict[str, Any]] = []
    for entry in entries:
        answer, law = entry.answer, entry.law
        about = {
            "panel": f"{answer.group.sweep}, {answer.group.workload}, {style.words(str(answer.target))}",
            "optimizer": answer.group.optimizer,
            "example_unit": answer.group.example_unit,
            "tokens_per_example": answer.group.tokens_per_example,
        }
        for at, half in zip(law.optima, law.half_widths, strict=True):
            low, high = at.interval(half)
            kind = "bound" if at.edge else "optimum"
            rows.append(about | {"kind": kind, "batch_size": at.batch_size, "lr": at.lr, "low": low, "high": high})
        if law.trend is not Trend.UNKNOWN:
            sizes = np.geomspace(law.inside[0], law.inside[-1], _ALONG)
            lrs = np.exp(law.log_lrs(sizes))
            tail = 0.5 - law.confidence / 2
            for size, lr, low, high in zip(sizes, lrs[0], *np.quantile(lrs[1:], [tail, 1 - tail], axis=0), strict=True):
                rows.append(about | {"kind": "law", "batch_size": size, "lr": lr, "low": low, "high": high})
    return pd.DataFrame(rows, columns=_COLUMNS)


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; optima with intervals, bounds as open triangles that point to where the optimum lies, laws as bands."""
    if table.empty:
        style.empty(axes, "no trial reached the target\nat a known learning rate")
        return
    table = table.astype(dict.fromkeys(("batch_size", "lr", "low", "high"), float))
    points = table[table["kind"] != "law"]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*style.log_limits(points["batch_size"]))
    axes.set_ylim(*style.log_limits(table[["lr", "low", "high"]].to_numpy().ravel()))
    looks = style.looks(list(dict.fromkeys(table["optimizer"])))
    key = [
        _draw_optimizer(axes, table[table["optimizer"] == name], name, look, place - (len(looks) - 1) / 2)
        for place, (name, look) in enumerate(looks.items())
    ]
    style.key(axes, key, table["batch_size"], table[["lr", "high"]].max(axis=1))
    style.log_axis(axes.xaxis, points["batch_size"])
    style.log_axis(axes.yaxis)
    style.token_axis(axes, table["tokens_per_example"])
    axes.set_xlabel(f"batch size ({table['example_unit'].iloc[0]}s)")
    style.axis_label(axes, "y", "best learning rate")


def _draw_optimizer(axes: Axes, part: pd.DataFrame, name: str, look: tuple[str, str], place: float) -> Line2D:
    """``place`` moves the points aside a little, so that the intervals of several optimizers stay apart."""
    colour, marker = look
    law, inside, bounds = (part[part["kind"] == kind] for kind in ("law", "optimum", "bound"))
    axes.plot(law["batch_size"], law["lr"], color=colour, zorder=3)
    axes.fill_between(law["batch_size"], law["low"], law["high"], color=colour, alpha=0.18, linewidth=0)
    lr = inside["lr"].to_numpy()
    low, high = (inside[end].fillna(inside["lr"]).to_numpy() for end in ("low", "high"))
    aside = 1.06**place
    axes.errorbar(
        inside["batch_size"] * aside, lr, yerr=[lr - low, high - lr], fmt=marker, color=colour, elinewidth=0.8, zorder=4
    )
    for row in bounds.itertuples():
        shape = "^" if np.isnan(row.high) else "v"
        axes.plot(row.batch_size * aside, row.lr, shape, color=colour, markerfacecolor="white", zorder=4)
    return axes.plot([], [], marker=marker, linestyle="-" if len(law) else "", color=colour, label=name)[0]


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Bounds, where there are any."""
    kinds = (
        ("high", "^", "at the upper edge of the grid: it lies there or above"),
        ("low", "v", "at the lower edge of the grid: it lies there or below"),
    )
    bounds = table[table["kind"] == "bound"]
    return [
        Line2D([], [], marker=shape, linestyle="", color=style.GREY, markerfacecolor="white", label=label)
        for end, shape, label in kinds
        if bounds[end].isna().any()
    ]


BEST_LEARNING_RATE = FigureKind(compute, draw, panels=True, by="panel", marks=marks)
