"""Steps to target against batch size, with the fit, its interval band and the critical batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.curves import perfect_scaling
from analysis.estimate.definitions import in_words, math_symbol
from analysis.present import style
from analysis.present.figures import FIGURES, FigureKind
from analysis.present.numbers import number, with_interval

if TYPE_CHECKING:
    from analysis.estimate.result import Answer

_RESOLUTION = 100


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Rows of three kinds, see column ``kind``.

    ``point``: steps of one batch size with the range over seeds (``low``, ``high``); ``censored``: the most steps run
    where the target was not reached; ``fit``: the fitted curve with the interval band, over the batch sizes that
    reached the target. Columns on every row: ``optimizer, definition, definition_in_words, critical_batch_size`` with
    its interval, ``confidence, example_unit, tokens_per_example, target``.
    """
    tables = []
    for answer in answers:
        rows = [
            {
                "kind": "point",
                "batch_size": p.batch_size,
                "steps": p.steps_to_target,
                "low": min(p.steps_per_seed),
                "high": max(p.steps_per_seed),
            }
            if p.reached
            else {"kind": "censored", "batch_size": p.batch_size, "steps": p.steps_lower_bound}
            for p in answer.points
        ]
        table = pd.concat([pd.DataFrame(rows), _fit(answer)], ignore_index=True) if answer.fit else pd.DataFrame(rows)
        low, high = answer.interval
        tables.append(
            table.assign(
                optimizer=answer.group.optimizer,
                definition=answer.definition,
                definition_in_words=in_words(answer.definition, answer.critical.options),
                critical_batch_size=np.nan if answer.critical_batch_size is None else answer.critical_batch_size,
                critical_low=np.nan if low is None else low,
                critical_high=np.nan if high is None else high,
                confidence=answer.confidence,
                example_unit=answer.group.example_unit,
                tokens_per_example=answer.group.tokens_per_example,
                target=str(answer.target),
            )
        )
    return pd.concat(tables, ignore_index=True).reindex(columns=[*_COLUMNS, *tables[0].columns.difference(_COLUMNS)])


_COLUMNS = ["optimizer", "kind", "batch_size", "steps", "low", "high"]


def _fit(answer: Answer) -> pd.DataFrame:
    fit, confidence = answer.fit, answer.confidence
    assert fit is not None
    ends = [fit.batch_sizes[0], fit.batch_sizes[-1]]
    if answer.critical_batch_size is not None:
        ends.append(np.clip(answer.critical_batch_size, answer.points[0].batch_size, answer.points[-1].batch_size))
    grid = np.geomspace(min(ends), max(ends), _RESOLUTION)
    table = {"kind": "fit", "batch_size": grid, "steps": np.exp(fit.estimate.log_steps(grid))}
    if len(fit.resampled_log_steps):
        band = np.quantile(fit.resampled.log_steps(grid), [0.5 - confidence / 2, 0.5 + confidence / 2], axis=0)
        table |= {"low": np.exp(band[0]), "high": np.exp(band[1])}
    return pd.DataFrame(table)


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; one colour and marker per optimizer, open triangles for lower bounds, a dotted line at every critical
    batch size."""
    unit = table["example_unit"].iloc[0]
    drawn = table[table["steps"].notna()]
    if drawn.empty:
        style.empty(axes, "no trial got far enough to draw")
        return
    sizes = table.loc[table["kind"] != "fit", "batch_size"]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*style.log_limits(sizes))
    axes.set_ylim(*style.log_limits(drawn[["steps", "low", "high"]].to_numpy().ravel()))
    names, dashes = style.looks(table["optimizer"]), style.dashes(table["optimizer"])
    key = [
        _draw_optimizer(
            axes, drawn[drawn["optimizer"] == name], name, (*look, dashes[name]), 4 + 2 * (len(names) - index)
        )
        for index, (name, look) in enumerate(names.items())
        if (drawn["optimizer"] == name).any()
    ]
    if (drawn["kind"] == "point").any():
        key.append(_draw_perfect_scaling(axes, drawn))
    if (drawn["kind"] == "censored").any():
        key.append(
            axes.plot([], [], "^", markerfacecolor="white", color=style.GREY, label="not reached in the steps run")[0]
        )
    title = (
        f"{math_symbol(table['definition'].iloc[0])} [{100 * table['confidence'].iloc[0]:g} % interval]"
        if table["critical_low"].notna().any()
        else ""
    )
    style.key(axes, key, drawn["batch_size"], drawn[["steps", "high"]].max(axis=1), title=title)
    style.log_axis(axes.xaxis, sizes)
    style.log_axis(axes.yaxis)
    style.token_axis(axes, table["tokens_per_example"])
    axes.set_xlabel(f"batch size ({unit}s)")
    style.axis_label(axes, "y", f"steps to {style.words(table['target'].iloc[0])}")


def _draw_optimizer(axes: Axes, part: pd.DataFrame, name: str, look: tuple[str, str, Any], triangle: float) -> Line2D:
    """Returns the handle for the key, labelled with the critical batch size.

    Triangles of several optimizers at one place are told apart by their size.
    """
    colour, marker, dashes = look
    points, fit, censored = (part[part["kind"] == kind] for kind in ("point", "fit", "censored"))
    if len(fit):
        axes.plot(fit["batch_size"], fit["steps"], color=colour, linestyle=dashes, zorder=3)
        if fit["low"].notna().all():
            axes.fill_between(fit["batch_size"], fit["low"], fit["high"], color=colour, alpha=0.18, linewidth=0)
    if len(points):
        over_seeds = np.maximum(0.0, [points["steps"] - points["low"], points["high"] - points["steps"]])
        axes.errorbar(
            points["batch_size"], points["steps"], yerr=over_seeds, fmt=marker, color=colour, elinewidth=0.6, zorder=4
        )
    if len(censored):
        axes.plot(
            censored["batch_size"],
            censored["steps"],
            "^",
            markerfacecolor="none",
            markersize=triangle,
            color=colour,
            zorder=4,
        )
    critical = float(part["critical_batch_size"].iloc[0])
    if len(fit) and axes.get_xlim()[0] <= critical <= axes.get_xlim()[1]:
        at = np.exp(np.interp(np.log(critical), np.log(fit["batch_size"]), np.log(fit["steps"])))
        axes.plot([critical, critical], [axes.get_ylim()[0], at], ":", color=colour, linewidth=0.9, zorder=2)
    label = f"{name}  {_value(critical, part['critical_low'].iloc[0], part['critical_high'].iloc[0])}".strip()
    line, marker = (dashes if len(fit) else ""), (marker if len(points) else "^")
    fill = colour if len(points) else "white"
    return axes.plot([], [], marker, linestyle=line, color=colour, markerfacecolor=fill, label=style.literal(label))[0]


def _value(critical: float, low: float, high: float) -> str:
    """The critical batch size in words short enough for a key."""
    ends = (None if np.isnan(low) else float(low), None if np.isnan(high) else float(high))
    if not np.isnan(critical):
        return with_interval(critical, ends)
    if ends[0] is not None:
        return f"> {number(ends[0])}"
    return "" if ends[1] is None else f"< {number(ends[1])}"


def _draw_perfect_scaling(axes: Axes, table: pd.DataFrame) -> Line2D:
    """One dashed line of slope -1 through the first point of the slowest optimizer."""
    points = table[table["kind"] == "point"]
    first = points.loc[points["steps"].idxmax()]
    sizes, limits = np.array(axes.get_xlim()), axes.get_ylim()
    steps = perfect_scaling(sizes, first["batch_size"], first["steps"])
    line = axes.plot(sizes, steps, "--", color=style.GREY, linewidth=0.8, zorder=1, label="perfect scaling")[0]
    axes.set_ylim(*limits)
    return line


def caption(table: pd.DataFrame) -> str:
    """What is seen, in words."""
    percent = f"{100 * table['confidence'].iloc[0]:g} %"
    return (
        f"Optimizer steps to {style.words(table['target'].iloc[0])} against the batch size in "
        f"{table['example_unit'].iloc[0]}s, each batch size at its best learning rate; both axes are logarithmic. "
        "Points are geometric means over seeds, bars their range; lines are the fitted curve S = S_min + E_min / "
        f"B, bands its {percent} interval. Dotted lines mark the critical batch size by definition "
        f"{table['definition_in_words'].iloc[0]}, the dashed one what perfect scaling would do. Open triangles: the "
        "target was not reached in the steps that were run, so the true "
        "value is higher."
    )


FIGURES.register("steps")(FigureKind(compute, draw, title="Steps against batch size", caption=caption))
