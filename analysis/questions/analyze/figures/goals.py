"""The trade-off between steps and examples at several targets: one front each, from easy to hard.

McCandlish et al. (2018), figure 5 on: a harder target moves the front outwards and the critical batch size up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.questions.analyze.figures import pareto

_COLUMNS = ["panel", "goal", "kind", "batch_size", "steps", "examples"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows as :func:`analysis.questions.analyze.figures.pareto.compute` does, with the value of the target as
    ``goal`` and the optimizer as ``panel``; of optimizers that were asked for one target, none."""
    tables = []
    for answer in answers:
        group = answer.group
        panel = ", ".join(filter(None, (group.sweep, group.workload, group.optimizer, answer.target.metric)))
        tables.append(pareto.compute([answer]).assign(panel=panel, goal=answer.target.value))
    table = pd.concat(tables) if tables else tidy([], _COLUMNS)
    several = table[table["kind"] == "point"].groupby("panel")["goal"].nunique()
    table = table[table["panel"].isin(several.index[several > 1])].reset_index(drop=True)
    return table[[*_COLUMNS, *(name for name in table if name not in _COLUMNS)]]


@figure(
    "pareto_goals",
    of=Analysis,
    compute=compute,
    panel="panel",
    whole=True,
    title="Data against steps at several targets",
    caption="Data in {example_unit}s against optimizer steps, a front for every target, darker the harder it is or the "
    "larger its value; each batch size at its best learning rate, both axes logarithmic. Lines are the fitted curves, "
    "stars the points at B_crit.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a front for every target in shades of one colour map, named at its end of small batches."""
    unit, marks = table["example_unit"].iloc[0], table[table["kind"].isin(["point", "critical"])]
    style.log_axes(axes, marks["steps"], marks["examples"], "steps to target", f"data ({unit}s)")
    style.token_axis(axes, table["tokens_per_example"], axis="y", quantity="data")
    falling = str(table["target"].iloc[0]).find("<") >= 0
    colours, ends = style.shades((-1 if falling else 1) * table["goal"]), []
    for goal, own in table.groupby("goal"):
        colour = colours[-goal if falling else goal]
        parts = [own[own["kind"] == kind] for kind in ("point", "fit", "critical")]
        for part, look in zip(parts, ("o", "-", "*"), strict=True):
            size = {"markersize": 10, "markeredgecolor": "white"} if look == "*" else {"markersize": 3.5}
            axes.plot(part["steps"], part["examples"], look, color=colour, zorder=4 if look == "*" else 3, **size)
        last = parts[0].loc[parts[0]["steps"].idxmax()] if len(parts[0]) else None
        if last is not None and np.isfinite(last["steps"]):
            ends.append((last["steps"], last["examples"], f"{goal:g}", colour))
    style.label_ends(axes, ends)
