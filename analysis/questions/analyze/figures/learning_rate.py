"""Steps to target against learning rate, one line per batch size, to check that every optimum is inside the grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.estimate.studies import Study
from analysis.present import style
from analysis.present.figures import figure, tidy
from cbs.trial.record import TrialStatus

_COLUMNS = ["optimizer", "batch_size", "lr", "steps", "seeds_reached", "seeds", "steps_lower_bound", "diverged"]
_HOLLOW = {"markersize": 3, "markerfacecolor": "white"}
_BEST = {"markersize": 8, "markeredgecolor": "white", "markeredgewidth": 0.5}
_MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "all seeds": ("o", {"markersize": 2.5}),
    "only some seeds reached it": ("o", _HOLLOW),
    "more steps than this": ("^", _HOLLOW),
    "diverged": ("x", {"markersize": 4}),
    "best": ("*", _BEST),
    "best, at the edge of the grid": ("*", _BEST | {"markeredgecolor": style.ALERT, "markeredgewidth": 1.0}),
}
"""Categories that are marked, see :func:`_marked`, with marker and style."""


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per optimizer, batch size and learning rate; none if no trial got far enough to draw.

    ``steps`` is the geometric mean over the seeds that reached the target (``seeds_reached`` of ``seeds``), NaN if none
    did; ``steps_lower_bound`` is then a lower bound of the steps; ``diverged`` is a number of seeds.
    """
    rows, tuned = [], any(answer.group.tuned for answer in answers)
    for answer in answers:
        about = {"example_unit": answer.group.example_unit, "target": str(answer.target)}
        for study, point in zip(answer.studies, answer.points, strict=True):
            study = study.along_lr
            for index, lr in enumerate(study.lrs):
                best = point.best_lr == lr
                row = {"optimizer": answer.group.optimizer, "batch_size": study.batch_size, "lr": lr}
                row |= ended(study, index) | ({"tuned": point.tuned} if tuned else {})
                row |= {"best": best, "at_grid_edge": bool(best and point.at_grid_edge)}
                rows.append(row | about)
    table = tidy(rows, _COLUMNS)
    known = table[["steps", "steps_lower_bound"]].notna().any(axis=1)
    return table[known.groupby(table["optimizer"]).transform("any")].reset_index(drop=True)


def ended(study: Study, index: int) -> dict[str, Any]:
    """Return how the trials of one row of a study ended: steps, seeds, a lower bound of the steps."""
    steps, bound, status = study.steps[index], study.bound[index], study.status[index]
    hits, bounds = steps[np.isfinite(steps)], bound[np.isfinite(bound)]
    return {
        "steps": float(np.exp(np.log(hits).mean())) if len(hits) else np.nan,
        "seeds_reached": len(hits),
        "seeds": int((status != "").sum()),
        "steps_lower_bound": float(bounds.max()) if len(bounds) and not len(hits) else np.nan,
        "diverged": int((status == str(TrialStatus.DIVERGED)).sum()),
    }


def _marked(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return masks of the rows in each category of :data:`_MARKS`."""
    reached, bounded = table["steps"].notna(), table["steps_lower_bound"].notna()
    some = table["seeds_reached"] < table["seeds"]
    edge = table["at_grid_edge"]
    lost = ~reached & ~bounded & (table["diverged"] > 0)
    return dict(zip(_MARKS, (reached & ~some, reached & some, bounded, lost, table["best"] & ~edge, edge), strict=True))


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of the categories that occur, except the plain one."""
    names = [name for name, rows in list(_marked(table).items())[1:] if rows.any()]
    return [style.mark(name, linestyle="", marker=_MARKS[name][0], **_MARKS[name][1]) for name in names]


@figure(
    "learning_rate",
    of=Analysis,
    compute=compute,
    panel="optimizer",
    marks=marks,
    title="Steps against learning rate",
    caption="Optimizer steps to {target} (geometric mean over the seeds that reached it) against the learning "
    "rate, one line per batch size B in {example_unit}s, with the best options if others were tuned as well; both "
    "axes are logarithmic. A star is the best learning "
    "rate, with a red rim where it is the lowest or highest that was tried. Open circles: only some seeds reached "
    "the target. Open triangles: none did in the steps that were run, so the true value is higher. Crosses at the "
    "top: every seed diverged.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a mark for every learning rate that says how its seeds ended, see :data:`_MARKS`."""
    table = table.assign(y=table["steps"].fillna(table["steps_lower_bound"]))
    label = f"steps to {style.words(table['target'].iloc[0])}"
    style.log_axes(axes, table["lr"], table["y"], "learning rate", label, most=style.most_ticks(axes))
    table["y"] = table["y"].where(~_marked(table)["diverged"], axes.get_ylim()[1] ** 0.98 * axes.get_ylim()[0] ** 0.02)
    colours, ends = style.shades(table["batch_size"]), []
    for batch_size, part in table.sort_values("lr").groupby("batch_size"):
        colour, reached = colours[batch_size], part[part["steps"].notna()]
        axes.plot(reached["lr"], reached["steps"], color=colour, linewidth=1.0, zorder=2)
        for place, (name, rows) in enumerate(_marked(part).items()):
            marker, look = _MARKS[name]
            axes.plot(part["lr"][rows], part["y"][rows], marker, **{"color": colour, "zorder": 3 + place} | look)
        shown = part[part["steps"].notna() | part["steps_lower_bound"].notna()]
        if len(shown):
            edge = " at edge" if part["at_grid_edge"].any() else ""
            if "tuned" in part and part["tuned"].iloc[0]:
                edge += f", {part['tuned'].iloc[0].replace('=', ' ')}"
            ends.append((shown["lr"].iloc[-1], shown["y"].iloc[-1], f"B={batch_size}{edge}", colour))
    style.label_ends(axes, ends)
