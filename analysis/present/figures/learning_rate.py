"""Steps to target against learning rate, one line per batch size: is every optimum inside the grid?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.present import style
from analysis.present.figures import FIGURES, FigureKind
from cbs.record import TrialStatus

if TYPE_CHECKING:
    from analysis.estimate.result import Answer
    from analysis.estimate.studies import Study

_COLUMNS = [
    "optimizer",
    "batch_size",
    "lr",
    "steps",
    "seeds_reached",
    "seeds",
    "steps_lower_bound",
    "diverged",
    "best",
    "at_grid_edge",
    "example_unit",
    "target",
]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """One row per optimizer, batch size and learning rate.

    ``steps`` is the geometric mean over the ``seeds_reached`` of ``seeds`` that reached the target, NaN where none did;
    ``steps_lower_bound`` is then the most steps it can be said not to be reached in; ``diverged`` counts seeds.
    """
    rows = []
    for answer in answers:
        for study, point in zip(answer.studies, answer.points, strict=True):
            for index in range(len(study.lrs)):
                row = _row(study, index)
                best = point.best_lr == study.lrs[index]
                about = {
                    "optimizer": answer.group.optimizer,
                    "batch_size": study.batch_size,
                    "example_unit": answer.group.example_unit,
                }
                rows.append(
                    about
                    | row
                    | {"best": best, "at_grid_edge": best and point.at_grid_edge, "target": str(answer.target)}
                )
    return pd.DataFrame(rows, columns=_COLUMNS)


def _row(study: Study, index: int) -> dict[str, object]:
    steps, bound, status = study.steps[index], study.bound[index], study.status[index]
    hits = steps[np.isfinite(steps)]
    bounds = bound[np.isfinite(bound)]
    return {
        "lr": study.lrs[index],
        "steps": float(np.exp(np.log(hits).mean())) if len(hits) else np.nan,
        "seeds_reached": len(hits),
        "seeds": int((status != "").sum()),
        "steps_lower_bound": float(bounds.max()) if len(bounds) and not len(hits) else np.nan,
        "diverged": int((status == str(TrialStatus.DIVERGED)).sum()),
    }


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; a star at every best learning rate, red where it lies at the edge of the grid; open markers where some
    seeds missed the target, open triangles for lower bounds, a cross at the top where every seed diverged."""
    known = table[table["steps"].notna() | table["steps_lower_bound"].notna()]
    if known.empty:
        style.empty(axes, "no trial got far enough to draw")
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*style.log_limits(table["lr"]))
    axes.set_ylim(*style.log_limits(known[["steps", "steps_lower_bound"]].to_numpy().ravel()))
    colours = style.shades(table["batch_size"])
    ends = []
    for batch_size, part in table.sort_values("lr").groupby("batch_size"):
        ends += _draw_batch_size(axes, part, colours[batch_size])
    style.label_ends(axes, ends)
    style.log_axis(axes.xaxis, most=style.most_ticks(axes))
    style.log_axis(axes.yaxis)
    axes.set_xlabel("learning rate")
    style.axis_label(axes, "y", f"steps to {style.words(table['target'].iloc[0])}")


def _draw_batch_size(axes: Axes, part: pd.DataFrame, colour: object) -> list[tuple[float, float, str, object]]:
    reached = part[part["steps"].notna()]
    full = reached[reached["seeds_reached"] == reached["seeds"]]
    partly = reached[reached["seeds_reached"] < reached["seeds"]]
    bounded = part[part["steps_lower_bound"].notna()]
    lost = part[part["steps"].isna() & part["steps_lower_bound"].isna() & (part["diverged"] > 0)]
    axes.plot(reached["lr"], reached["steps"], color=colour, linewidth=1.0, zorder=2)
    axes.plot(full["lr"], full["steps"], "o", color=colour, markersize=2.5, zorder=3)
    axes.plot(partly["lr"], partly["steps"], "o", color=colour, markersize=3, markerfacecolor="white", zorder=3)
    axes.plot(
        bounded["lr"], bounded["steps_lower_bound"], "^", color=colour, markersize=3, markerfacecolor="white", zorder=1
    )
    axes.plot(
        lost["lr"],
        [0.98] * len(lost),
        "x",
        color=style.GREY,
        markersize=4,
        transform=axes.get_xaxis_transform(),
        zorder=1,
    )
    for row in part[part["best"]].itertuples():
        rim: dict[str, Any] = (
            {"markeredgecolor": style.ALERT, "markeredgewidth": 1.0}
            if row.at_grid_edge
            else {"markeredgecolor": "white", "markeredgewidth": 0.5}
        )
        axes.plot(row.lr, row.steps, "*", color=colour, markersize=9, zorder=4, **rim)
    shown = part.assign(y=part["steps"].fillna(part["steps_lower_bound"])).dropna(subset="y")
    if not len(shown):
        return []
    last = shown.iloc[-1]
    edge = " at edge" if part["at_grid_edge"].any() else ""
    return [(last["lr"], last["y"], f"B={last['batch_size']}{edge}", colour)]


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Those that are there."""
    reached = table["steps"].notna()
    lost = ~reached & table["steps_lower_bound"].isna() & (table["diverged"] > 0)
    kinds: list[tuple[str, str, pd.Series, dict[str, Any]]] = [
        ("best", "*", table["best"].astype(bool) & ~table["at_grid_edge"].astype(bool), {"markersize": 8}),
        (
            "best, at the edge of the grid",
            "*",
            table["at_grid_edge"].astype(bool),
            {"markersize": 8, "markeredgecolor": style.ALERT},
        ),
        (
            "only some seeds reached it",
            "o",
            reached & (table["seeds_reached"] < table["seeds"]),
            {"markersize": 3, "markerfacecolor": "white"},
        ),
        (
            "more steps than this",
            "^",
            table["steps_lower_bound"].notna(),
            {"markersize": 3, "markerfacecolor": "white"},
        ),
        ("diverged", "x", lost, {"markersize": 4}),
    ]
    return [
        Line2D([], [], marker=marker, linestyle="", color=style.GREY, label=label, **look)
        for label, marker, there, look in kinds
        if there.any()
    ]


def caption(table: pd.DataFrame) -> str:
    """What is seen, in words."""
    return (
        f"Optimizer steps to {style.words(table['target'].iloc[0])} (geometric mean over the seeds that reached "
        f"it) against the learning rate, one line per batch size B in {table['example_unit'].iloc[0]}s; both axes "
        "are logarithmic. A star is the best learning rate, with a red rim where it is the lowest or highest "
        "that was tried. Open circles: only some seeds reached the target. Open triangles: none did in the steps "
        "that were run, so the true value is higher. Crosses at the top: every seed diverged."
    )


FIGURES.register("learning_rate")(
    FigureKind(compute, draw, panels=True, marks=marks, title="Steps against learning rate", caption=caption)
)
