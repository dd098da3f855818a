"""Best learning rate against batch size, with the law fitted to the optima, and against 1/width, with its drift.

Essential AI (2025, arXiv 2505.02222), algorithm 1: the optimum of a width n drifts as x* - alpha/n, so that grids of
ever fewer points may follow it from narrow models to wide ones.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.learning_rate_law import Trend
from analysis.present import style
from analysis.present.figures import along, figure, tidy
from analysis.quantities import percentiles
from cbs.registry.values import is_number
from extensions.lr.learning_rates import LearningRate, LearningRates

_COLUMNS = ["panel", "optimizer", "kind", "batch_size", "lr", "low", "high", "example_unit", "tokens_per_example"]
_DRIFT = ["panel", "optimizer", "width", "batch_size", "lr", "low", "high", "edge"]
_ALONG = 60  # Points of the law's curve


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
    for at in law.optima:
        ends = dict(zip(("low", "high"), at.interval, strict=True))
        kind = "bound" if at.at_grid_edge else "optimum"
        yield about | {"kind": kind, "batch_size": at.batch_size, "lr": at.lr} | ends
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
    for index, (name, look, (law, inside, bounds)) in enumerate(style.each(table, "law", "optimum", "bound")):
        aside = 1.06 ** (index - middle)
        style.curve(axes, law, "batch_size", "lr", look)
        style.points(axes, inside, "batch_size", "lr", look, aside=aside)
        for row in bounds.itertuples():
            shape = "^" if np.isnan(row.high) else "v"
            axes.plot(row.batch_size * aside, row.lr, shape, color=look.colour, markerfacecolor="white", zorder=4)
        key.append(style.handle(name, look, line=len(law) > 0))
    style.key(axes, key, table["batch_size"], table[["lr", "high"]].max(axis=1))


def compute_drift(result: LearningRates) -> pd.DataFrame:
    """Return one row per optimizer, batch size and width of the workload, with the best learning rate, its interval,
    and whether it is at an ``edge`` of its grid; only where there are several widths."""
    rows = []
    for entry in result.entries:
        group = entry.answer.group
        width = group.workload_options.get("width")
        for at in entry.law.optima if is_number(width) else ():
            name = f"{group.choice.name}, B={at.batch_size}, {style.words(str(entry.answer.target))}"
            about = {"panel": name, "optimizer": group.choice.name, "confidence": entry.law.confidence}
            ends = dict(zip(("low", "high"), at.interval, strict=True))
            rows.append(about | {"width": width, "batch_size": at.batch_size, "lr": at.lr, "edge": at.edge != 0} | ends)
    table = tidy(rows, _DRIFT)
    return table[table.groupby("panel")["width"].transform("nunique") > 1].reset_index(drop=True)


@figure("width_drift", of=LearningRates, compute=compute_drift, panel="panel")
def draw_drift(axes: Axes, table: pd.DataFrame) -> None:
    """Draw optima with intervals against 1/width, and the least-squares line through those inside their grids, up to
    infinite width."""
    table = table.assign(x=1 / table["width"])
    axes.set_xlim(0.0, 1.08 * table["x"].max())
    style.log_scale(axes, "y", table[["lr", "low", "high"]], most=6)
    style.axis_label(axes, "x", "1 / width")
    style.axis_label(axes, "y", "best learning rate")
    axes.set_xticks(table["x"], [f"1/{width:g}" for width in table["width"]])
    look = style.looks(["optimum"])["optimum"]
    inside = table[~table["edge"].astype(bool)]
    style.points(axes, inside, "x", "lr", look)
    edge = table[table["edge"].astype(bool)]
    axes.plot(edge["x"], edge["lr"], look.marker, color=look.colour, markerfacecolor="white", zorder=4)
    key = [style.mark(style.percent(table), color=look.colour, marker=look.marker, linestyle="")]
    if len(edge):
        hollow = {"markerfacecolor": "white", "color": look.colour}
        key.append(style.mark("at an edge of its grid", marker=look.marker, linestyle="", **hollow))
    if inside["width"].nunique() > 1:
        slope, start = np.polyfit(inside["x"], np.log(inside["lr"]), 1)
        across = np.linspace(0.0, table["x"].max(), 2)
        axes.plot(across, np.exp(start + slope * across), "--", color=style.GREY, zorder=2)
        key.append(
            style.mark(f"ln lr = {start:.3g} {'+' if slope > 0 else '-'} {abs(slope):.3g} / width", linestyle="--")
        )
    style.key(axes, key, table["x"], table["high"].combine_first(table["lr"]))
