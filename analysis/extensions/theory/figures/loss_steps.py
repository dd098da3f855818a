"""Steps to a loss over batch sizes, according to the forms of the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.extensions.theory.loss import Losses
from analysis.phrases import number, with_interval
from analysis.present import style
from analysis.present.figures import figure, tidy

_COLUMNS = ["form", "batch_size", "steps", "low", "high"]
_TALLEST = 100.0
"""Factor above the lines up to which a band is drawn."""


def compute(losses: Losses) -> pd.DataFrame:
    """Return one row per form, model size, target and batch size, without those at which the loss is not reached."""
    rows: list[dict[str, Any]] = []
    measured = losses.runs.batch_size
    for one in losses.implied:
        about = {
            "form": one.form,
            "critical_batch_size": one.critical.value,
            "label": with_interval(one.critical.value, one.critical.interval),
            "panel": f"N = {number(one.parameters)}, loss {number(one.target)}",
            "lowest": measured.min(),
            "highest": measured.max(),
            "confidence": losses.config.confidence,
        }
        for values in zip(one.batch_sizes, one.steps, one.low, one.high, strict=True):
            row = dict(zip(_COLUMNS[1:], values, strict=True))
            rows += [about | row] if np.isfinite(row["steps"]) else []
    return tidy(rows, _COLUMNS)


@figure("loss_steps", of=Losses, compute=compute, panel="panel", columns=2)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a line for every form, thick within the measured batch sizes."""
    shown = style.near(table["steps"], table[["low", "high"]], 3)
    style.log_axes(axes, table["batch_size"], shown, "batch size B", "steps K to the loss", most=5)
    handles = []
    for name, look in style.looks(table["form"]).items():
        own = table[table["form"] == name]
        about = own.iloc[0]
        inner = own[own["batch_size"].between(about["lowest"] * 0.999, about["highest"] * 1.001)]
        axes.plot(own["batch_size"], own["steps"], color=look.colour, linestyle=look.dashes, linewidth=0.6, zorder=2)
        band = inner.assign(high=inner["high"].clip(upper=_TALLEST * inner["steps"]))
        style.curve(axes, band, "batch_size", "steps", look)
        critical = about["critical_batch_size"]
        if pd.notna(critical) and axes.get_xlim()[0] < critical < axes.get_xlim()[1]:
            style.drop_line(axes, own, critical, look)
        handles.append(style.handle(f"{name}  {about['label']}", look._replace(marker="")))
    title = f"$B_{{crit}}$ [{style.percent(table)}]"
    style.key(axes, handles, table["batch_size"], table["steps"], title=title)
