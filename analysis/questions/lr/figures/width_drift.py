"""The best learning rate against 1/width, with the line of its drift.

Essential AI (2025, arXiv 2505.02222), algorithm 1: the optimum of a width n drifts as x* - alpha/n, so that grids of
ever fewer points may follow it from narrow models to wide ones.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.questions.lr.answer import LearningRates
from cbs.registry.domains import is_number

_COLUMNS = ["panel", "optimizer", "width", "batch_size", "lr", "low", "high", "edge"]


def compute(found: LearningRates) -> pd.DataFrame:
    """Return one row per optimizer, batch size and width of the workload, with the best learning rate, its interval,
    and whether it is at an ``edge`` of its grid; only where there are several widths."""
    rows = []
    for entry in found.entries:
        group = entry.answer.group
        width = group.workload_options.get("width")
        for at, half in zip(entry.law.optima, entry.law.half_widths, strict=True) if is_number(width) else ():
            name = f"{group.choice.name}, B={at.batch_size}, {style.words(str(entry.answer.target))}"
            about = {"panel": name, "optimizer": group.choice.name, "confidence": entry.law.confidence}
            ends = dict(zip(("low", "high"), at.interval(half), strict=True))
            rows.append(about | {"width": width, "batch_size": at.batch_size, "lr": at.lr, "edge": at.edge != 0} | ends)
    table = tidy(rows, _COLUMNS)
    return table[table.groupby("panel")["width"].transform("nunique") > 1].reset_index(drop=True)


@figure("width_drift", of=LearningRates, compute=compute, panel="panel")
def draw(axes: Axes, table: pd.DataFrame) -> None:
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
