"""The trade-off between steps and examples: what a larger batch gains and what it costs, at one target or several.

McCandlish et al. (2018), figure 1 and equation 2.11; figure 5 on: a harder target moves the front outwards and the
critical batch size up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.estimate.definitions import HEADLINE
from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.phrases import B_CRIT
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.figures.of_answers import fitted, measured, of_each

_RESOLUTION = 120
_COLUMNS = ["optimizer", "kind", "batch_size", "steps", "examples", "low", "high"]
_GOALS = ["panel", "goal", "kind", "batch_size", "steps", "examples"]


def rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield rows of up to four kinds (column ``kind``): ``point`` per batch size; ``fit`` along the curve;
    ``hyperbola`` along the curve of exponent 1 if that looks different; ``critical`` at the critical batch size, if it
    was measured there."""
    found = [measured(point) for point in answer.points if point.reached]
    if answer.draws is not None:
        first, last = answer.draws.batch_sizes[[0, -1]]
        found += fitted(answer, np.geomspace(first, last, _RESOLUTION))
    examples, size = answer.examples_at_critical.value, answer.critical_batch_size
    if examples and size:
        found.append({"kind": "critical", "batch_size": size, "steps": examples / size})
    for row in found:
        kept = {name: row[name] for name in ("kind", "batch_size", "steps")}
        if row["kind"] == "fit":
            kept |= {"low": row["low"], "high": row["high"]}
        yield kept | {"examples": row["batch_size"] * row["steps"]}


compute = of_each(rows, _COLUMNS)


@figure(
    "pareto",
    of=Analysis,
    main=False,
    compute=compute,
    apart=True,
    title="Data against steps",
    caption="Data to {target} in {example_unit}s against the optimizer steps to it, each batch size at its best "
    "learning rate; both axes are logarithmic. Numbers at the points are batch sizes: small ones at the lower "
    "right, large ones at the upper left. Lines are the expected curves, bands "
    "their {percent} intervals at each batch size, thin ones the hyperbola where that looks "
    "different. A star is the critical batch size by definition {definition_in_words}. By least_product, "
    + B_CRIT
    + "; on the dotted lines through the stars steps x examples are the same.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the curve, with small batches at the lower right, large ones at the upper left, and a star at B_crit."""
    curved = table["kind"].isin(["fit", "hyperbola", "other"])
    marks, curves = table[~curved], table[curved]
    label, y_label = f"steps to {style.words(table['target'].iloc[0])}", f"data ({table['example_unit'].iloc[0]}s)"
    style.log_axes(axes, marks["steps"], marks["examples"], label, y_label, above=0.12)
    style.token_axis(axes, table["tokens_per_example"], axis="y", quantity="data")
    looks = style.looks(table["optimizer"])
    constant: dict[str, Any] = {"color": style.GREY, "linestyle": ":", "linewidth": 0.7, "zorder": 1}
    for _, look, (points, fit, thin, star) in style.each(table, "point", "fit", "hyperbola", "critical"):
        band = [np.append(fit["low"], fit["high"][::-1]), np.append(fit["batch_size"], fit["batch_size"][::-1])]
        axes.fill(band[0], band[0] * band[1], color=look.colour, alpha=0.15, linewidth=0, zorder=1)
        axes.plot(thin["steps"], thin["examples"], color=look.colour, linewidth=0.5, zorder=2)
        axes.plot(fit["steps"], fit["examples"], color=look.colour, linestyle=look.dashes, zorder=2)
        axes.plot(points["steps"], points["examples"], look.marker, color=look.colour, zorder=3)
        marked: dict[str, Any] = {"color": look.colour, "markersize": 11, "markeredgecolor": "white", "zorder": 4}
        axes.plot(star["steps"], star["examples"], "*", **marked)
        for _, least in star[star["definition"] == HEADLINE].iterrows():
            axes.axline((least["steps"], least["examples"]), (least["steps"] / 2, 2 * least["examples"]), **constant)
    others = style.behind(axes, table, "steps", "examples")
    key = [] if others else [style.handle(name, look) for name, look in looks.items()]
    if (table["kind"] == "critical").any():
        key.append(style.mark("$B_{\\mathrm{crit}}$", marker="*", markersize=8, linestyle=""))
        if (table["definition"] == HEADLINE).all():
            key.append(style.mark("least steps x examples", linestyle=":", linewidth=0.7))
    if (table["kind"] == "hyperbola").any():
        key.append(style.mark("hyperbola", linewidth=0.5))
    if others:
        style.below(cast(Figure, axes.figure), [*key, *others])
    else:
        style.key(axes, key, marks["steps"], marks["examples"])
    points = table[table["kind"] == "point"].copy()
    groups = points.groupby("optimizer", sort=False)["batch_size"]
    sizes = points["batch_size"]
    points["middle"] = (sizes > groups.transform("min")) & (sizes < groups.transform("max"))
    labels = [
        (row.steps, row.examples, f"{row.batch_size:g}", looks[row.optimizer].colour)
        for row in points.sort_values("middle", kind="stable").itertuples()
    ]
    both = ["steps", "examples"]
    style.label_points(axes, labels, marks[marks["kind"] != "beyond"][both].to_numpy(), curves[both].to_numpy())


def compute_goals(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows as :func:`compute` does, with the value of the target as
    ``goal`` and the optimizer as ``panel``; no rows for an optimizer with a single target."""
    tables, parts = [], [(a.group.sweep, a.group.workload, a.target.metric, a.group.optimizer) for a in answers]
    told = [len(set(column)) > 1 for column in list(zip(*parts, strict=True))[:-1]] + [True]
    for answer, own in zip(answers, parts, strict=True):
        panel = ", ".join(part for part, shown in zip(own, told, strict=True) if shown)
        tables.append(compute([answer]).assign(panel=panel, goal=answer.target.value))
    table = pd.concat(tables) if tables else tidy([], _GOALS)
    several = table[table["kind"] == "point"].groupby("panel")["goal"].nunique()
    table = table[table["panel"].isin(several.index[several > 1])].reset_index(drop=True)
    return table[[*_GOALS, *(name for name in table if name not in _GOALS)]]


@figure(
    "pareto_goals",
    of=Analysis,
    main=False,
    compute=compute_goals,
    panel="panel",
    whole=True,
    title="Data against steps at several targets",
    caption="Data in {example_unit}s against optimizer steps, a front for every target, darker the harder it is or the "
    "larger its value; each batch size at its best learning rate, both axes logarithmic. Lines are the expected "
    "curves, stars the critical batch sizes by definition {definition_in_words}.",
)
def draw_goals(axes: Axes, table: pd.DataFrame) -> None:
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
