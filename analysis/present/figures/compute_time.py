"""The compute-time plane: devices against wall time to the target, one curve per optimizer along batch sizes.

Essential AI, "Practical Efficiency of Muon" (2505.02222): lower left is better.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from analysis.phrases import time_unit
from analysis.present import style
from analysis.present.figures import FIGURES, figure, tidy
from analysis.questions.comparison.result import Comparisons

_TIMES = ["seconds", "seconds_low", "seconds_high"]


def compute(found: Comparisons) -> pd.DataFrame:
    """One row per optimizer, number of devices and batch size; ``on_frontier`` where nothing is better in both."""
    rows = [
        {"panel": comparison.title} | point for comparison in found.comparisons for point in comparison.compute_time
    ]
    return tidy(rows, ["panel", "optimizer", "devices", "batch_size", "steps", *_TIMES, "on_frontier"])


@FIGURES.register("compute_time")
@figure(
    of=Comparisons,
    compute=compute,
    panel="panel",
    title="Devices against time",
    caption="Devices against the least wall time to the target on them, validation not included; both axes are "
    "logarithmic, and lower left is better. Bands are intervals of the steps. Small dots: batch sizes that another "
    "one beats. B: the batch sizes along the line.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; the frontier with its interval and the range of its batch sizes, small dots for what lies behind it."""
    unit, length = time_unit(table["seconds"])
    times = (table[_TIMES].astype(float) / length).set_axis(["time", "low", "high"], axis=1)
    table = pd.concat([table, times], axis=1)
    front = table[table["on_frontier"].astype(bool)].sort_values("devices")
    behind = table[~table["on_frontier"].astype(bool)]
    style.log_axes(axes, front[["time", "low", "high"]], front["devices"], above=0.12, below=0.1)
    key = []
    for name, look in style.looks(table["optimizer"]).items():
        own, rest = front[front["optimizer"] == name], behind[behind["optimizer"] == name]
        axes.plot(rest["time"], rest["devices"], ".", color=look.colour, markersize=2.5, alpha=0.35, zorder=2)
        axes.plot(own["time"], own["devices"], marker=look.marker, color=look.colour, linestyle=look.dashes, zorder=4)
        style.band(axes, own, "devices", look.colour, axis="y")
        sizes = sorted({own["batch_size"].min(), own["batch_size"].max()})
        key.append(style.handle(f"{name}, B={'–'.join(f'{size:g}' for size in sizes)}", look))
    style.key(axes, key, front["time"], front["devices"])
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis, front["devices"])
    axes.set_xlabel(f"time to target ({unit})")
    axes.set_ylabel("devices")
