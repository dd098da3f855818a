"""Scheduled runs compared with the front of constant batch sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.figures.of_answers import about, fitted
from extensions.schedules.judge.answer import Schedules

_RESOLUTION = 120
_BEYOND = 1.5
_COLUMNS = ["panel", "optimizer", "kind", "batch_size", "steps", "examples", "low", "high", "x_low", "x_high"]


def compute(schedules: Schedules) -> pd.DataFrame:
    """Return rows of three kinds (column ``kind``): ``point`` per constant batch size, ``fit`` along their curve,
    ``schedule`` per schedule, with the interval of its steps (``x_low``, ``x_high``) and examples (``low``, ``high``).

    The column ``optimizer`` has the name of the schedule, or ``constant batch size``.
    """
    rows: list[dict[str, Any]] = []
    answers = list({id(entry.answer): entry.answer for entry in schedules.entries}.values())
    for answer in answers:
        panel = {"panel": f"{answer.group.sweep}, {answer.group.workload}, {answer.group.optimizer}"}
        whose = about(answer) | panel | {"optimizer": "constant batch size"}
        reached = [point for point in answer.points if point.reached]
        for point in reached:
            took = {"steps": point.steps_to_target, "examples": point.examples_to_target}
            rows.append(whose | {"kind": "point", "batch_size": point.batch_size} | took)
        if answer.draws is not None:
            sizes = np.geomspace(reached[0].batch_size / _BEYOND, reached[-1].batch_size * _BEYOND, _RESOLUTION)
            rows += [
                whose | {**row, "low": np.nan, "high": np.nan, "examples": row["batch_size"] * row["steps"]}
                for row in fitted(answer, sizes)
                if row["kind"] == "fit"
            ]
        for entry in schedules.entries:
            if entry.answer is answer and entry.comparison is not None:
                steps, examples = entry.comparison.steps, entry.comparison.examples
                rows.append(
                    about(answer) | panel | {
                        "optimizer": f"{entry.schedule} from {entry.batch_size}", "kind": "schedule",
                        "batch_size": entry.batch_size, "steps": steps.value, "examples": examples.value,
                        **dict(zip(("x_low", "x_high"), steps.interval, strict=True)),
                        **dict(zip(("low", "high"), examples.interval, strict=True)),
                    }
                )  # fmt: skip
    return tidy(rows, _COLUMNS) if any(row["kind"] == "schedule" for row in rows) else tidy([], _COLUMNS)


@figure("schedule_front", of=Schedules, compute=compute, panel="panel")
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw constant batch sizes in grey, and every schedule in a style of its own."""
    marks = table[table["kind"] != "fit"]
    unit = table["example_unit"].iloc[0]
    label = f"steps to {style.words(table['target'].iloc[0])}"
    steps, examples = marks[["steps", "x_low", "x_high"]], marks[["examples", "low", "high"]]
    style.log_axes(axes, steps, examples, label, f"data ({unit}s)", above=0.12)
    style.token_axis(axes, table["tokens_per_example"], axis="y", quantity="data")
    points, fit, scheduled = (table[table["kind"] == kind] for kind in ("point", "fit", "schedule"))
    axes.plot(fit["steps"], fit["examples"], color=style.GREY, zorder=2)
    axes.plot(points["steps"], points["examples"], "o", color=style.GREY, zorder=3)
    key = [style.mark("constant batch size", marker="o", linestyle="-")]
    # the first style, a circle, is that of the constant batch sizes
    for name, look, (rows,) in style.each(scheduled, "schedule", after=["constant batch size"]):
        style.points(axes, rows, "steps", "examples", look)
        key.append(style.handle(name, look, line=False))
    style.key(axes, key, marks["steps"], marks["examples"])
    labels = [(row.steps, row.examples, f"{row.batch_size:g}", style.GREY) for row in points.itertuples()]
    both = ["steps", "examples"]
    style.label_points(axes, labels, marks[both].to_numpy(), fit[both].to_numpy())
