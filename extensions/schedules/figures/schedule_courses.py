"""How scheduled runs went: batch size and learning rate over the data, and the loss over data, steps and time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.figures import figure, tidy
from extensions.schedules.judge.answer import Judged, Schedules

_COLUMNS = ["panel", "optimizer", "x", "y", "x_label", "y_label", "target_value", "tokens_per_example", "target"]
_MOST = 400
"""Largest number of points of a line; longer ones are thinned out evenly along the run."""


def compute(schedules: Schedules) -> pd.DataFrame:
    """Return one row per point of a line, with the panel, its axes and the name of the schedule (``optimizer``) in
    columns.

    Intrinsic time is the sum of the learning rates so far.
    """
    rows = [panel for entry in _hardest(schedules) for panel in _panels(entry)]
    if not rows:
        return tidy([], _COLUMNS)
    table = pd.concat(rows)
    return table.iloc[pd.factorize(table["panel"])[0].argsort(kind="stable")].reset_index(drop=True)


def _hardest(schedules: Schedules) -> list[Judged]:
    """Return one run of every schedule: the one at the hardest target if there are several."""
    kept: dict[tuple[int, str, int], Judged] = {}
    for entry in schedules.entries:
        whose = id(entry.answer.group), entry.choice, entry.batch_size
        target, known = entry.answer.target, kept.get(whose)
        if entry.course is not None and (known is None or known.answer.target.reached(target.value)):
            kept[whose] = entry
    return list(kept.values())


def _panels(entry: Judged) -> list[pd.DataFrame]:
    assert entry.course is not None
    group, target = entry.answer.group, entry.answer.target
    course, measured = entry.course, entry.course[entry.course["value"].notna()]
    tokens = "" if group.tokens_per_example is None else f" of {group.tokens_per_example:g} tokens"
    unit, metric = f"data ({group.example_unit}s{tokens})", style.words(target.metric)
    time = course["lr"].cumsum()
    begins = course["examples"] - course["batch_size"]
    scope = "" if not group.sweep else f"{group.optimizer}: "
    about: dict[str, Any] = {
        "optimizer": f"{entry.schedule} from {entry.batch_size}", "target_value": target.value,
        "tokens_per_example": group.tokens_per_example, "target": str(target),
    }  # fmt: skip
    lines = (
        ("batch size", unit, "batch size", begins, course["batch_size"]),
        ("learning rate", unit, "learning rate", begins, course["lr"]),
        ("over data", unit, metric, measured["examples"], measured["value"]),
        ("over steps", "steps", metric, measured["step"], measured["value"]),
        ("over intrinsic time", "sum of learning rates", metric, time[measured.index], measured["value"]),
    )
    frames = []
    for name, x_label, y_label, x, y in lines:
        kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST)).round().astype(int))
        if name == "batch size":
            # keep every change of the batch size, whatever is thinned out
            changed = np.flatnonzero(np.diff(y.to_numpy())) + 1
            kept = np.unique([*kept, *changed])
        points = pd.DataFrame({"x": x.to_numpy()[kept], "y": y.to_numpy()[kept]})
        frames.append(points.assign(panel=scope + name, x_label=x_label, y_label=y_label, **about)[_COLUMNS])
    return frames


def marks(table: pd.DataFrame) -> list[Any]:
    """Return key entries of the schedules, shown below the panels."""
    each = style.each(table, after=["constant batch size"])
    return [style.handle(name, look._replace(marker="")) for name, look, _ in each]


@figure("schedule_courses", of=Schedules, compute=compute, panel="panel", marks=marks)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw steps for settings and lines for measurements."""
    x_label, y_label = table["x_label"].iloc[0], table["y_label"].iloc[0]
    stairs = y_label in ("batch size", "learning rate")
    style.axis_label(axes, "x", x_label)
    style.axis_label(axes, "y", y_label)
    if y_label != "learning rate":
        style.log_scale(axes, "y", table["y"], table["y"] if y_label == "batch size" else None)
    if x_label.startswith("data"):
        style.data_scale(axes)
    drawn = "steps-post" if stairs else "default"
    for _, look, (rows,) in style.each(table, y_label, column="y_label", after=["constant batch size"]):
        axes.plot(rows["x"], rows["y"], color=look.colour, linestyle=look.dashes, drawstyle=drawn)
    if not stairs:
        axes.axhline(float(table["target_value"].iloc[0]), color=style.GREY, linestyle=":", linewidth=0.9)
