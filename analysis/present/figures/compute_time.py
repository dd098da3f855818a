"""The compute-time plane: devices against wall time to the target, one curve per optimizer along batch sizes.

Essential AI, "Practical Efficiency of Muon" (2505.02222): lower left is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.phrases import time_unit
from analysis.present import style
from analysis.present.figures import FigureKind

if TYPE_CHECKING:
    from analysis.questions.comparison.result import Comparison

_TIMES = ("seconds", "seconds_low", "seconds_high")
_COLUMNS = ["panel", "optimizer", "devices", "batch_size", "steps", *_TIMES, "on_frontier"]
_ABOUT = ["assumption", "statement"]


def compute(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """One row per optimizer, number of devices and batch size; ``on_frontier`` where nothing is better in both. A panel
    without any has one row with a ``statement``."""
    rows: list[dict[str, Any]] = []
    for comparison in comparisons:
        found = [{"panel": comparison.title} | point.to_json() for point in comparison.points]
        nothing = "no batch size that reached the target\nhas a step time"
        rows += found or [{"panel": comparison.title, "statement": nothing}]
    return pd.DataFrame(rows, columns=[*_COLUMNS, *_ABOUT])


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; the frontier with its interval and the range of its batch sizes, small dots for what lies behind it."""
    drawn = table[table["statement"].isna()]
    if drawn.empty:
        style.empty(axes, table["statement"].iloc[0])
        return
    unit, length = time_unit(drawn["seconds"])
    drawn = drawn.assign(**{name: drawn[name].astype(float) / length for name in _TIMES})
    front = drawn[drawn["on_frontier"].astype(bool)]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*style.log_limits(front[list(_TIMES)].to_numpy().ravel(), below=0.08, above=0.12))
    axes.set_ylim(*style.log_limits(front["devices"], below=0.12, above=0.12))
    looks = style.looks(drawn["optimizer"])
    key = [_draw_optimizer(axes, drawn[drawn["optimizer"] == name], name, look) for name, look in looks.items()]
    style.key(axes, key, front["seconds"], front["devices"])
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis, front["devices"])
    axes.set_xlabel(f"time to target ({unit})")
    axes.set_ylabel("devices")


def _draw_optimizer(axes: Axes, part: pd.DataFrame, name: str, look: tuple[str, str]) -> Line2D:
    colour, marker = look
    front = part[part["on_frontier"].astype(bool)].sort_values("devices")
    behind = part[~part["on_frontier"].astype(bool)]
    axes.plot(behind["seconds"], behind["devices"], ".", color=colour, markersize=2.5, alpha=0.35, zorder=2)
    axes.plot(front["seconds"], front["devices"], "-", marker=marker, color=colour, zorder=4)
    if front["seconds_low"].notna().all():
        axes.fill_betweenx(
            front["devices"], front["seconds_low"], front["seconds_high"], color=colour, alpha=0.18, linewidth=0
        )
    sizes = sorted({front["batch_size"].min(), front["batch_size"].max()})
    label = f"{name}, B={'–'.join(f'{size:g}' for size in sizes)}"
    return axes.plot([], [], marker=marker, color=colour, label=label)[0]


COMPUTE_TIME = FigureKind(compute, draw, panels=True, by="panel")
