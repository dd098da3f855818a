"""The final metric against the number of steps, at equal examples; lower left is better."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.figures import figure, tidy
from extensions.schedules.losses import ScheduleLosses

_COLUMNS = ["panel", "optimizer", "steps", "metric", "low", "high", "label"]


def compute(found: ScheduleLosses) -> pd.DataFrame:
    """Return one row per schedule and first batch size, or constant batch size; ``optimizer`` is the text in the
    key."""
    rows = []
    for entry in found.entries:
        constant = entry.schedule == "constant"
        name = f"constant, B = {entry.batch_size}" if constant else f"{entry.schedule} from {entry.batch_size}"
        low, high = entry.metric.interval
        label = f"{style.words(found.metric)} at the end"
        values = (f"{entry.sweep}, {entry.optimizer}", name, entry.steps, entry.metric.value, low, high, label)
        rows.append(dict(zip(_COLUMNS, values, strict=True)))
    return tidy(rows, _COLUMNS)


@figure("schedule_losses", of=ScheduleLosses, compute=compute, panel="panel")
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a mark with its interval for each, with steps on a log axis."""
    axes.set(xlabel="steps", ylabel=table["label"].iloc[0])
    style.log_scale(axes, "x", table["steps"], most=style.most_ticks(axes))
    handles = []
    for name, look in style.looks(table["optimizer"]).items():
        style.points(axes, table[table["optimizer"] == name], "steps", "metric", look)
        handles.append(style.handle(name, look, line=False))
    style.key(axes, handles, table["steps"], table[["metric", "high"]].max(axis=1))
