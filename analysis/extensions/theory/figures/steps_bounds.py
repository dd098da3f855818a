"""Measured steps and examples with the form of the steps bound, and how best batch sizes change between settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.arrays import percentiles
from analysis.extensions.theory.bounds.checks import CheckOutcome
from analysis.extensions.theory.bounds.measured import BoundScope, MeasuredBound, MeasuredBounds
from analysis.extensions.theory.tables.bounds import named
from analysis.present import style
from analysis.present.figures import along, figure, parts, scopes, tidy

_ALONG = 120
_COLUMNS = ["panel", "kind", "optimizer", "batch_size", "value", "low", "high", "after", "confidence", "target"]
MOVES = "ratios of settings"


@parts.register(MeasuredBounds)
def _(result: MeasuredBounds) -> Iterable[tuple[str, BoundScope]]:
    names = [suffix for suffix, _ in scopes([answer for scope in result.scopes for answer in scope.answers])]
    return zip(names, result.scopes, strict=True)


def compute(scope: BoundScope) -> pd.DataFrame:
    """Return rows of six kinds (column ``kind``); none if there is neither a form nor a ratio to draw.

    ``point`` with its interval; ``missed``, a lower bound; ``form``, that of the bound; ``best``, its b*; ``ratio``,
    measured (``value``) against predicted (``batch_size``) between settings, by the measured batch size named in
    ``optimizer``; ``doubted``, a ratio that cannot be decided.
    """
    rows = [row for bound in scope.bounds for row in _rows(bound)]
    names = "\n".join(dict.fromkeys(bound.optimizer for bound in scope.bounds))
    for scaled in scope.scalings:
        if scaled.kind == "ratio" and scaled.measured.value is not None:
            kind = "doubted" if scaled.verdict is CheckOutcome.UNKNOWN else "ratio"
            values = (scaled.predicted, scaled.measured.value, *scaled.measured.interval)
            about = {"panel": MOVES, "kind": kind, "optimizer": named(scaled.quantity)}
            rows.append(about | dict(zip(("batch_size", "value", "low", "high"), values, strict=True)))
    if not {"form", "ratio", "doubted"} & {row["kind"] for row in rows}:
        return tidy([], _COLUMNS)  # the steps alone are shown in another figure
    answer = scope.answers[0]
    common = {
        "after": names,
        "confidence": answer.confidence,
        "target": str(answer.target),
        "example_unit": answer.group.example_unit,
    }
    return tidy([row | common for row in rows], _COLUMNS)


def _rows(bound: MeasuredBound) -> Iterator[dict[str, Any]]:
    fit = bound.answer.fit
    if fit is None:
        return
    sizes = fit.batch_sizes
    resampled = fit.measured_resamples if len(fit.resampled_log_steps) else np.empty((0, len(sizes)))
    low, high = percentiles(resampled, bound.answer.confidence)
    missed = [(p.batch_size, p.steps_lower_bound) for p in bound.answer.points if not p.reached and p.steps_lower_bound]
    for panel, power in (("steps", 0.0), ("examples", 1.0)):
        about = {"panel": f"{panel} to target", "optimizer": bound.optimizer}
        scale = sizes**power
        values, ends = np.exp(fit.log_steps) * scale, np.exp([low, high]) * scale
        drawn = along("point", batch_size=sizes, value=values, low=ends[0], high=ends[1])
        drawn += [{"kind": "missed", "batch_size": size, "value": steps * size**power} for size, steps in missed]
        if bound.fit is not None:
            pole = float(bound.fit.form.pole)
            grid = pole + np.geomspace(sizes[0] - pole, sizes[-1] - pole, _ALONG)
            values = np.exp(bound.fit.form.log_steps(grid)) * grid**power
            drawn += along("form", batch_size=grid, value=values)
            if panel == "examples" and bound.best.value is not None:
                best = np.array([bound.best.value])
                drawn += along("best", batch_size=best, value=best * np.exp(bound.fit.form.log_steps(best)))
        yield from (about | row for row in drawn)


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of the optimizers, of the measured batch sizes that may change, and of the other marks."""
    before = str(table["after"].iloc[0]).split("\n")
    looks = style.looks([*before, *table["optimizer"]])
    handles = [style.handle(name, look, line=False) for name, look in looks.items()]
    kinds = set(table["kind"])
    others = (
        ("form", style.mark("form of the bound", linestyle=(0, (4, 1.5)))),
        ("best", style.mark("its b*", marker="*", linestyle="", markersize=8)),
        ("missed", style.mark("target not reached", marker="^", linestyle="", markerfacecolor="white")),
        ("doubted", style.mark("undecided", marker="o", linestyle="", markerfacecolor="white")),
    )
    return [*handles, *(mark for kind, mark in others if kind in kinds)]


@figure("steps_bounds", of=MeasuredBounds, compute=compute, panel="panel", marks=marks)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw points with bars and the form dashed; an open mark is a bound or undecided."""
    before = str(table["after"].iloc[0]).split("\n")
    panel = table["panel"].iloc[0]
    if panel == MOVES:
        return _moves(axes, table, before)
    points = table[table["kind"] != "form"]
    unit = f"batch size ({table['example_unit'].iloc[0]}s)"
    ends = points[["value", "low", "high"]].to_numpy(float)
    style.log_axes(axes, table["batch_size"], ends, unit, panel.split(" ")[0], most=style.most_ticks(axes))
    for _, look, (own, missed, form, best) in style.each(table, "point", "missed", "form", "best", after=before):
        axes.plot(form["batch_size"], form["value"], color=look.colour, linestyle=(0, (4, 1.5)), zorder=3)
        style.points(axes, own, "batch_size", "value", look)
        axes.plot(missed["batch_size"], missed["value"], "^", color=look.colour, markerfacecolor="white", zorder=4)
        axes.plot(best["batch_size"], best["value"], "*", color=look.colour, markersize=8, zorder=5)
    return None


def _moves(axes: Axes, table: pd.DataFrame, before: Sequence[str]) -> None:
    """Draw the ratios; grey lines are the prediction and no change at all, an interval without an end runs to the
    edge."""
    ends = table[["value", "low", "high"]].to_numpy(float)
    near = np.clip(ends, np.nanmin(table["value"]) / 30, np.nanmax(table["value"]) * 30)
    x = np.append(table["batch_size"], 1.0)
    style.log_axes(axes, x, np.append(near, x), "predicted ratio", "measured ratio", most=4, below=0.15)
    across, (bottom, top) = np.array(axes.get_xlim()), axes.get_ylim()
    axes.plot(across, across, color=style.GREY, linewidth=0.8, zorder=1)
    axes.axhline(1.0, color=style.GREY, linewidth=0.6, linestyle=(0, (1, 1.5)), zorder=1)
    middle = float(np.sqrt(across.prod()))
    words = (("as predicted", middle, middle, -8, "left"), ("no change", across[1], 1.0, 2, "right"))
    for text, x_at, y_at, below, side in words:
        axes.annotate(
            text, (x_at, y_at), (3 if side == "left" else 0, below), textcoords="offset points", ha=side,
            fontsize=style.SMALL - 1, color="#5f5f5f",
        )  # fmt: skip
    kinds = table["optimizer"].nunique()
    for place, (_, look, (sure, doubted)) in enumerate(style.each(table, "ratio", "doubted", after=before)):
        aside = 1.05 ** (place - (kinds - 1) / 2)
        for rows, fill in ((sure, look.colour), (doubted, "white")):
            low, high = rows["low"].fillna(bottom).clip(bottom), rows["high"].fillna(top).clip(upper=top)
            axes.vlines(rows["batch_size"] * aside, low, high, color=look.colour, linewidth=0.7, zorder=3)
            marks: dict[str, Any] = {"color": look.colour, "markerfacecolor": fill, "zorder": 4}
            axes.plot(rows["batch_size"] * aside, rows["value"], look.marker, **marks)
