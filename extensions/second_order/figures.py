"""Steps of a second-order method against its total batch size and against the batch size of its inner steps.

Abreu et al. (2025, arXiv 2510.09378): an outer step of Gauss-Newton minimizes a model of the loss by inner steps on
parts of its batch.
"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.figures.of_answers import measured
from analysis.present.findings import Analysis

INNER = "inner_batch_size"
_COLUMNS = ["panel", "method", "batch_size", INNER, "x", "line", "steps", "low", "high"]
_PANELS = {"batch_size": "against the total batch size", INNER: "against the inner batch size"}


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return two rows for every batch size that reached the target, one for each panel: ``x`` is the batch size of the
    panel, ``line`` the other one. Only optimizers that were given inner batch sizes count; none if all have the same.
    """
    rows = []
    for answer in answers:
        inner = answer.group.choice.options.get(INNER)
        for point in answer.points if inner else ():
            if point.reached:
                sizes = {"batch_size": point.batch_size, INNER: inner}
                about = {"method": answer.group.choice.name, "example_unit": answer.group.example_unit}
                about |= {"target": str(answer.target)} | measured(point) | sizes
                rows += [
                    about | {"panel": panel, "x": sizes[x], "line": sizes[line]}
                    for (x, panel), line in zip(_PANELS.items(), reversed(_PANELS), strict=True)
                ]
    table = tidy(rows, _COLUMNS)
    return table if table[INNER].nunique() > 1 else table.iloc[:0]


@figure(
    "inner_batch",
    of=Analysis,
    main=False,
    compute=compute,
    panel="panel",
    title="Steps against total and inner batch size",
    caption="Optimizer steps to {target} of methods that take inner steps on parts of their batch, against the batch "
    "size of a step and against that of an inner one, in {example_unit}s; all axes are logarithmic. A line for every "
    "value of the other batch size, named at its end; bars are the range over seeds.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a line for every value of the other batch size."""
    which = next(name for name, panel in _PANELS.items() if panel == table["panel"].iloc[0])
    words = {"batch_size": "batch size", INNER: "inner batch size"}
    unit, label = table["example_unit"].iloc[0], f"steps to {style.words(table['target'].iloc[0])}"
    style.log_axes(axes, table["x"], table[["steps", "low", "high"]], f"{words[which]} ({unit}s)", label,
                   ticks=sorted(set(table["x"])), most=style.most_ticks(axes))  # fmt: skip
    colours, ends = style.shades(table["line"]), []
    for (method, line), own in table.sort_values("x").groupby(["method", "line"]):
        axes.plot(own["x"], own["steps"], "o-", color=colours[line], markersize=3)
        axes.vlines(own["x"], own["low"], own["high"], color=colours[line], linewidth=0.7)
        name = f"{'B' if which == INNER else 'inner'}={line:g}"
        name += f", {method}" if table["method"].nunique() > 1 else ""
        ends.append((own["x"].iloc[-1], own["steps"].iloc[-1], name, colours[line]))
    style.label_ends(axes, ends)
