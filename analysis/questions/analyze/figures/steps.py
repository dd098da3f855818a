"""Steps to target against batch size: the curve with its interval band, the critical batch size, and how far around it
steps x examples are nearly as few."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from analysis.estimate.definitions import math_symbol
from analysis.estimate.result import Answer
from analysis.formatting import B_CRIT, with_interval
from analysis.present import style
from analysis.present.figures import along, figure
from analysis.present.figures.of_answers import CRITICAL, fitted, measured, of_each
from analysis.present.findings import Analysis
from analysis.quantities import percentiles

_RESOLUTION = 100  # Points of a curve
_PALE: dict[str, Any] = {"color": style.GREY, "linewidth": 2.5, "alpha": 0.35, "zorder": 1}
_NEAR: dict[str, Any] = {"linewidth": 6, "alpha": 0.25, "zorder": 1}
_DRAWN = ("point", "fit", "hyperbola", "censored", "at_most", "near")
_COLUMNS = ["optimizer", "kind", "batch_size", "steps", "low", "high"]
_ALONG = 60  # Points of the curve of doublings, each an answer of all draws
_DOUBLING = ["optimizer", "kind", "batch_size", "steps_saved", "low", "high", "examples_added"]
EVEN = 100 * (1 - 0.5**0.5)  # Percent of the steps that doubling saves where steps times examples stay the same


def rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield rows of several kinds (column ``kind``).

    ``point``: steps of one batch size with the range over seeds (``low``, ``high``); ``censored``: the most steps run
    where the target was not reached; ``at_most``: the steps of the first evaluation, where it was past the target;
    ``fit``: the expected curve with its interval band, over the batch sizes whose steps are known; ``near``: the part
    of it where steps times examples are within 10 % of the least; ``hyperbola``: the curve of exponent 1, if that
    looks different.
    """
    for point in answer.points:
        if point.reached:
            yield measured(point)
        elif point.bounded:
            yield {"kind": "at_most", "batch_size": point.batch_size, "steps": point.steps_upper_bound}
        elif point.steps_lower_bound is not None:
            yield {"kind": "censored", "batch_size": point.batch_size, "steps": point.steps_lower_bound}
    if answer.draws is not None:
        first, last = answer.draws.batch_sizes[[0, -1]]
        yield from fitted(answer, np.geomspace(first, last, _RESOLUTION))
        low, high = max(answer.near[0] or first, first), min(answer.near[1] or last, last)
        near = np.geomspace(low, high, _RESOLUTION if low < high else 0)
        yield from along("near", batch_size=near, steps=np.exp(answer.draws.estimate(near)))


@figure(
    "steps",
    of=Analysis,
    compute=of_each(rows, _COLUMNS),
    apart=True,
    title="Steps against batch size",
    caption="Optimizer steps to {target} against the batch size in {example_unit}s, each batch size at its best "
    "learning rate; both axes are logarithmic. Points are geometric means over seeds, bars their range; lines are "
    "the expected curves, bands their {percent} intervals; thin ones the hyperbola where that looks different. Dotted "
    "lines mark the critical batch size by definition {definition_in_words}, bars at their feet its interval, which "
    "the key gives. By least_product, " + B_CRIT + "; where a curve is broad, the product is within 10 % of the "
    "least. Pale grey: perfect scaling. Open triangles: the target was not reached in the steps that were run, so the "
    "true value is higher; those that point down: runs were past it when first evaluated, and the true value is lower.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw one style per optimizer, open triangles for lower bounds, and a dotted line with a bar at every critical
    batch size; if an optimizer has a panel of its own, its critical batch size is in the corner."""
    sizes = table.loc[table["kind"].isin(["point", "censored", "at_most", "beyond"]), "batch_size"]
    label = f"steps to {style.words(table['target'].iloc[0])}"
    style.batch_axes(axes, table, table[["steps", "low", "high"]], label, sizes)
    count = table["optimizer"].nunique()
    key = [
        _draw_optimizer(axes, name, look, kinds, count - index)
        for index, (name, look, kinds) in enumerate(style.each(table, *_DRAWN))
    ]
    points = table[table["kind"] == "point"]
    if len(points):
        slowest, limits = points.loc[points["steps"].idxmax()], axes.get_ylim()
        steps = slowest["steps"] * slowest["batch_size"] / np.array(axes.get_xlim())
        key += axes.plot(axes.get_xlim(), steps, label="perfect scaling", **_PALE)
        axes.set_ylim(*limits)
    if (table["kind"] == "censored").any():
        key.append(style.mark("more steps than this", marker="^", linestyle="", markerfacecolor="white"))
    if (table["kind"] == "at_most").any():
        key.append(style.mark("fewer steps than this", marker="v", linestyle="", markerfacecolor="white"))
    if (table["kind"] == "hyperbola").any():
        key.append(style.mark("hyperbola", linewidth=0.5))
    if (table["kind"] == "near").any():
        key.append(style.mark("within 10 %", **_NEAR))
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


def _draw_optimizer(axes: Axes, name: str, look: style.MarkStyle, kinds: Sequence[pd.DataFrame], index: int) -> Line2D:
    """Draw one optimizer and return its key entry, labelled with the critical batch size.

    ``index`` counts optimizers from the last: triangles at one place differ in size, and bars in height.
    """
    points, fit, hyperbola, censored, at_most, near = kinds
    style.curve(axes, fit, "batch_size", "steps", look)
    axes.plot(hyperbola["batch_size"], hyperbola["steps"], color=look.colour, linewidth=0.5, zorder=2)
    style.points(axes, points, "batch_size", "steps", look)
    open_marks: dict[str, Any] = {
        "markerfacecolor": "none",
        "markersize": 4 + 2 * index,
        "color": look.colour,
        "zorder": 4,
    }
    axes.plot(censored["batch_size"], censored["steps"], "^", **open_marks)
    axes.plot(at_most["batch_size"], at_most["steps"], "v", **open_marks)
    about = pd.concat(kinds).iloc[0]
    critical, low, high = about[list(CRITICAL)].astype(float)
    if len(fit) and axes.get_xlim()[0] <= critical <= axes.get_xlim()[1]:
        steps = np.exp(np.interp(np.log(critical), np.log(fit["batch_size"]), np.log(fit["steps"])))
        axes.plot([critical] * 2, [axes.get_ylim()[0], steps], ":", color=look.colour, linewidth=0.9, zorder=2)
        if not np.isnan([low, high]).all():
            ends = np.where(np.isnan([low, high]), axes.get_xlim(), [low, high])  # an open end goes on to the edge
            axes.plot(ends, [0.02 * index] * 2, color=look.colour, linewidth=2, alpha=0.6, zorder=2,
                      transform=axes.get_xaxis_transform(), solid_capstyle="butt")  # fmt: skip
    axes.plot(near["batch_size"], near["steps"], color=look.colour, solid_capstyle="butt", **_NEAR)
    shown, fill = (look, look.colour) if len(points) else (look._replace(marker="^"), "white")
    return style.handle(f"{name}  {_words(about)}".strip(), shown, line=len(fit) > 0, markerfacecolor=fill)


def _words(about: pd.Series) -> str:
    """Return the critical batch size of a row with its interval, short enough for a key."""
    numbers = about[list(CRITICAL)].astype(object)
    value, low, high = numbers.where(numbers.notna(), None)
    return "" if value is low is high is None else with_interval(value, (low, high))


def doubling_rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield rows of two kinds: ``point`` for every measured batch size whose double is not above the largest one, and
    ``fit`` between them.

    ``steps_saved`` is in percent, with its interval ``low`` to ``high``; ``examples_added``, in percent, follows from
    it.
    """
    found: list[dict[str, Any]] = []
    for entry in answer.doublings:
        saved = entry.steps_saved.times(100)
        ends = dict(zip(("low", "high"), saved.interval, strict=True))
        found.append({"kind": "point", "batch_size": entry.batch_size, "steps_saved": saved.value} | ends)
    if answer.draws is not None and len(answer.doublings) > 1:
        sizes = np.geomspace(answer.doublings[0].batch_size, answer.doublings[-1].batch_size, _ALONG)
        rise = answer.draws.drawn(2 * sizes) - answer.draws.drawn(sizes)
        expected = answer.draws.estimate(2 * sizes) - answer.draws.estimate(sizes)
        high, low = -100 * np.expm1(percentiles(rise, answer.confidence))
        found += along("fit", batch_size=sizes, steps_saved=-100 * np.expm1(expected), low=low, high=high)
    yield from (row | {"examples_added": 100 - 2 * row["steps_saved"]} for row in found)


@figure(
    "doubling",
    of=Analysis,
    main=False,
    compute=of_each(doubling_rows, _DOUBLING),
    apart=True,
    title="What doubling the batch size buys",
    caption="Percent of the optimizer steps to {target} that twice the batch size saves, against the batch size in "
    "{example_unit}s, with {percent} intervals; 50 % is perfect scaling. Saving p % adds 100 - 2p % of the "
    "examples. On the grey line steps x examples stay the same: above it, doubling saves more time than it costs data.",
)
def draw_doubling(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a curve with its band and marks for every optimizer, and the line of an even exchange."""
    own = table[table["kind"] != "beyond"]
    sizes = sorted(set(own.loc[own["kind"] == "point", "batch_size"]))
    style.log_scale(axes, "x", sizes, sizes, most=style.most_ticks(axes))
    style.axis_label(axes, "x", f"batch size to double ({table['example_unit'].iloc[0]}s)")
    style.axis_label(axes, "y", f"steps saved to {style.words(table['target'].iloc[0])} (%)")
    axes.axhline(EVEN, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1)
    key = []
    for name, look, (points, fit) in style.each(table, "point", "fit"):
        axes.plot(fit["batch_size"], fit["steps_saved"], color=look.colour, linestyle=look.dashes, zorder=3)
        style.band(axes, fit, "batch_size", look.colour)
        axes.plot(points["batch_size"], points["steps_saved"], look.marker, color=look.colour, zorder=4)
        key.append(style.handle(name, look))
    axes.set_ylim(min(0.0, float(own["steps_saved"].min())), max(55.0, float(own["steps_saved"].max())))
    if not style.behind(axes, table, "batch_size", "steps_saved"):
        turned: Any = (lambda saved: 100 - 2 * saved, lambda added: (100 - added) / 2)
        axes.secondary_yaxis("right", functions=turned).set_ylabel(f"{table['example_unit'].iloc[0]}s added (%)")
        style.key(axes, key, own["batch_size"], own["steps_saved"])
