"""Steps to target against batch size, with the fit, its interval band and the critical batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from analysis.estimate.definitions import math_symbol
from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.phrases import number, with_interval
from analysis.present import style
from analysis.present.figures import CRITICAL, about, figure, tidy
from analysis.present.figures.curves import fitted, measured

_RESOLUTION = 100

_PALE: dict[str, Any] = {"color": style.GREY, "linewidth": 2.5, "alpha": 0.35, "zorder": 1}
_COLUMNS = ["optimizer", "kind", "batch_size", "steps", "low", "high"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows of several kinds (column ``kind``).

    ``point``: steps of one batch size with the range over seeds (``low``, ``high``); ``censored``: the most steps run
    where the target was not reached; ``fit``: the fitted curve with the interval band, over the batch sizes that
    reached the target; ``hyperbola``: the same with exponent 1, if that looks different. Every row has the critical
    batch size and the exponent with their intervals.
    """
    return tidy([row | about(answer) for answer in answers for row in _rows(answer)], _COLUMNS)


def _rows(answer: Answer) -> Iterator[dict[str, Any]]:
    for point in answer.points:
        if point.reached:
            yield measured(point)
        elif point.steps_lower_bound is not None:
            yield {"kind": "censored", "batch_size": point.batch_size, "steps": point.steps_lower_bound}
    if answer.fit is not None:
        ends = [answer.fit.batch_sizes[0], answer.fit.batch_sizes[-1]]
        if answer.critical_batch_size is not None:
            ends.append(np.clip(answer.critical_batch_size, answer.points[0].batch_size, answer.points[-1].batch_size))
        yield from fitted(answer, np.geomspace(min(ends), max(ends), _RESOLUTION))


@figure(
    "steps",
    of=Analysis,
    compute=compute,
    apart=True,
    title="Steps against batch size",
    caption="Optimizer steps to {target} against the batch size in {example_unit}s, each batch size at its best "
    "learning rate; both axes are logarithmic. Points are geometric means over seeds, bars their range; lines are "
    "the fitted curve, S = S_min (1 + (B_crit/B)^a) or one of another knee, bands "
    "its {percent} interval; thin ones the same with a = 1 "
    "where that looks different. Dotted lines mark the critical batch size by definition {definition_in_words}, which "
    "the key gives, the pale grey one what perfect scaling would do. Open triangles: the target was not reached in "
    "the steps that were run, so the true value is higher.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw one style per optimizer, open triangles for lower bounds, and a dotted line at every critical batch size; if
    an optimizer has a panel of its own, its critical batch size is in the corner."""
    sizes = table.loc[table["kind"].isin(["point", "censored", "beyond"]), "batch_size"]
    label = f"steps to {style.words(table['target'].iloc[0])}"
    style.batch_axes(axes, table, table[["steps", "low", "high"]], label, sizes)
    count = table["optimizer"].nunique()
    key = [
        _draw_optimizer(axes, name, look, kinds, 4 + 2 * (count - index))
        for index, (name, look, kinds) in enumerate(style.each(table, "point", "fit", "hyperbola", "censored"))
    ]
    points = table[table["kind"] == "point"]
    if len(points):
        slowest, limits = points.loc[points["steps"].idxmax()], axes.get_ylim()
        steps = slowest["steps"] * slowest["batch_size"] / np.array(axes.get_xlim())
        key += axes.plot(axes.get_xlim(), steps, label="perfect scaling", **_PALE)
        axes.set_ylim(*limits)
    if (table["kind"] == "censored").any():
        key.append(style.mark("more steps than this", marker="^", linestyle="", markerfacecolor="white"))
    if (table["kind"] == "hyperbola").any():
        key.append(style.mark("exponent fixed at 1", linewidth=0.5))
    symbol = math_symbol(table["definition"].iloc[0])
    known = table[list(CRITICAL)].notna().any()
    title = f"{symbol} [{style.percent(table)}]" if known["critical_low"] else symbol if known.any() else ""
    others = style.behind(axes, table, "batch_size", "steps")
    if not others:
        style.key(axes, key, table["batch_size"], table[["steps", "high"]].max(axis=1), title=title)
        return
    if words := _words(table.iloc[0]):
        axes.annotate(
            words, (0.98, 0.98), xycoords="axes fraction", ha="right", va="top", fontsize=style.SMALL, zorder=5,
            path_effects=[withStroke(linewidth=1.8, foreground="white")],
        )  # fmt: skip
    style.below(cast(Figure, axes.figure), [*key[1:], *others], title=title and f"in the corner: {title}")


def _draw_optimizer(
    axes: Axes, name: str, look: style.MarkStyle, kinds: Sequence[pd.DataFrame], triangle: float
) -> Line2D:
    """Draw one optimizer and return its key entry, labelled with the critical batch size.

    Triangles of several optimizers at one place differ in size.
    """
    points, fit, hyperbola, censored = kinds
    style.curve(axes, fit, "batch_size", "steps", look)
    axes.plot(hyperbola["batch_size"], hyperbola["steps"], color=look.colour, linewidth=0.5, zorder=2)
    style.points(axes, points, "batch_size", "steps", look)
    open_marks: dict[str, Any] = {"markerfacecolor": "none", "markersize": triangle, "color": look.colour, "zorder": 4}
    axes.plot(censored["batch_size"], censored["steps"], "^", **open_marks)
    about = pd.concat(kinds).iloc[0]
    critical = about["critical_batch_size"]
    if len(fit) and axes.get_xlim()[0] <= critical <= axes.get_xlim()[1]:
        style.drop_line(axes, fit, critical, look)
    shown, fill = (look, look.colour) if len(points) else (look._replace(marker="^"), "white")
    return style.handle(f"{name}  {_words(about)}".strip(), shown, line=len(fit) > 0, markerfacecolor=fill)


def _words(about: pd.Series) -> str:
    """Return the critical batch size of a row with its interval, short enough for a key."""
    numbers = about[list(CRITICAL)].astype(object)
    value, low, high = numbers.where(numbers.notna(), None)
    if value is not None:
        return with_interval(value, (low, high))
    if low is not None:
        return f"> {number(low)}"
    return "" if high is None else f"< {number(high)}"
