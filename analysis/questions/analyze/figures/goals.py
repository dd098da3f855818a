"""The trade-off between steps and examples at several targets: one front each, from easy to hard.

McCandlish et al. (2018), figure 5 on: a harder target moves the front outwards and the critical batch size up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.questions.analyze.figures import pareto

_COLUMNS = ["panel", "goal", "kind", "batch_size", "steps", "examples"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows as :func:`analysis.questions.analyze.figures.pareto.compute` does, with the value of the target as
    ``goal`` and the optimizer as ``panel``; no rows for an optimizer with a single target."""
    tables, parts = [], [(a.group.sweep, a.group.workload, a.target.metric, a.group.optimizer) for a in answers]
    told = [len(set(column)) > 1 for column in list(zip(*parts, strict=True))[:-1]] + [True]
    for answer, own in zip(answers, parts, strict=True):
        panel = ", ".join(part for part, shown in zip(own, told, strict=True) if shown)
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
    "larger its value; each batch size at its best learning rate, both axes logarithmic. Lines are the expected "
    "curves, stars the critical batch sizes by definition {definition_in_words}.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a front for every target in shades of one colour map."""
    unit, marks = table["example_unit"].iloc[0], table[table["kind"].isin(["point", "critical"])]
    style.log_axes(axes, marks["steps"], marks["examples"], "steps to target", f"data ({unit}s)")
    style.token_axis(axes, table["tokens_per_example"], axis="y", quantity="data")
    goals = dict(zip(table["goal"], table["target"], strict=True))
    key = []
    for goal, colour in style.shades_of_targets([*goals], str(table["target"].iloc[0])).items():
        own = table[table["goal"] == goal]
        points, fit, star = (own[own["kind"] == kind] for kind in ("point", "fit", "critical"))
        axes.plot(fit["steps"], fit["examples"], color=colour, zorder=2)
        axes.plot(points["steps"], points["examples"], "o", color=colour, markersize=3.5, zorder=3)
        axes.plot(star["steps"], star["examples"], "*", color=colour, markersize=10, markeredgecolor="white", zorder=4)
        key.append(style.mark(style.words(goals[goal]), color=colour, marker="o", markersize=3.5))
    style.below(cast(Figure, axes.figure), key)
