"""Figures that compare optimizers: the token ratio against batch size, and devices against wall time.

Essential AI, "Practical Efficiency of Muon" (2505.02222); the token ratio is from equation 2: how many times more
examples the reference needs than each of the others, which does not fall with the batch size, at any loss. In the
plane of devices and time, lower left is better.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.formatting import time_unit
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.figures.of_answers import about
from analysis.questions.compare.optimizers import Comparisons

_RATIO = ["optimizer", "kind", "batch_size", "token_ratio", "low", "high", "measured"]
_TIMES = ["seconds", "seconds_low", "seconds_high"]


def compute_ratio(comparisons: Comparisons) -> pd.DataFrame:
    """Return rows of two kinds (column ``kind``): ``point`` per batch size at which both optimizers reached the target,
    with the measured ratio ``measured`` beside that by the draws, and ``curve`` between them, both with intervals."""
    rows = []
    for comparison in comparisons.comparisons:
        own = {"panel": comparison.title, "reference": comparison.reference} | about(comparison.answers[0])
        for ratio in comparison.token_ratios:
            for kind, ratios in (("point", ratio.at), ("curve", ratio.curve)):
                values = [(ratio.optimizer, kind, at.batch_size, at.value, *at.interval, at.measured) for at in ratios]
                rows += [own | dict(zip(_RATIO, row, strict=True)) for row in values]
    return tidy(rows, ["panel", "reference", *_RATIO])


@figure("token_ratio", of=Comparisons, compute=compute_ratio, panel="panel")
def draw_ratio(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the curves with their bands, and the measured ratios as points; those of several optimizers are
    offset. Where a better learning rate may lie beyond the grid, points have intervals in place of a band."""
    sizes, reference = table.loc[table["kind"] == "point", "batch_size"], table["reference"].iloc[0]
    values = np.append(table[["token_ratio", "low", "high", "measured"]].to_numpy(float), 1.0)
    style.batch_axes(axes, table, values, f"token ratio, {reference} / other", sizes)
    axes.axhline(1.0, color=style.GREY, linewidth=0.6, zorder=1)
    middle, key = (table["optimizer"].nunique() - 1) / 2, []
    for index, (name, look, (points, curve)) in enumerate(style.each(table, "point", "curve", after=[reference])):
        style.curve(axes, curve, "batch_size", "token_ratio", look)
        if len(curve) and curve[["low", "high"]].notna().all(axis=None):
            points = points.assign(low=np.nan, high=np.nan)  # the band has them
        style.points(axes, points, "batch_size", "measured", look, aside=1.06 ** (index - middle))
        key.append(style.handle(name, look, line=len(curve) > 0))
    highest = table[["token_ratio", "high", "measured"]].max(axis=1).clip(lower=1.0)  # the line at 1, too
    style.key(axes, key, table["batch_size"], highest)


def compute_plane(comparisons: Comparisons) -> pd.DataFrame:
    """Return one row per optimizer, number of devices and batch size; ``on_frontier`` if none is better in both
    respects."""
    rows = [
        {"panel": comparison.title} | point
        for comparison in comparisons.comparisons
        for point in comparison.compute_time
    ]
    return tidy(rows, ["panel", "optimizer", "devices", "batch_size", "steps", *_TIMES, "on_frontier"])


@figure("compute_time", of=Comparisons, compute=compute_plane, panel="panel")
def draw_plane(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the frontier with its interval and the range of its batch sizes, and small dots for dominated points."""
    unit, length = time_unit(table["seconds"])
    times = (table[_TIMES].astype(float) / length).set_axis(["time", "low", "high"], axis=1)
    table = pd.concat([table, times], axis=1)
    front = table[table["on_frontier"].astype(bool)]
    times, label = front[["time", "low", "high"]], f"time to target ({unit})"
    style.log_axes(axes, times, front["devices"], label, "devices", above=0.12, below=0.1)
    style.log_axis(axes.yaxis, front["devices"])
    key = []
    for name, look, (best, rest) in style.each(table, True, False, column="on_frontier"):
        best = best.sort_values("devices")
        axes.plot(rest["time"], rest["devices"], ".", color=look.colour, markersize=2.5, alpha=0.35, zorder=2)
        axes.plot(best["time"], best["devices"], marker=look.marker, color=look.colour, linestyle=look.dashes, zorder=4)
        style.band(axes, best, "devices", look.colour, axis="y")
        sizes = sorted({best["batch_size"].min(), best["batch_size"].max()})
        key.append(style.handle(f"{name}, B={'–'.join(f'{size:g}' for size in sizes)}", look))
    style.key(axes, key, front["time"], front["devices"])


def compute_goals(comparisons: Comparisons) -> pd.DataFrame:
    """Return the measured ratios of :func:`compute_ratio` with the value of the target as ``goal``, a panel for every
    pair of optimizers; no rows for a pair with a single target."""
    rows = compute_ratio(comparisons)
    goals = {each.title: each.answers[0].target.value for each in comparisons.comparisons}
    where = {each.title: (each.scope["sweep"], each.scope["workload"]) for each in comparisons.comparisons}
    rows = rows[rows["kind"] == "point"]
    if not len(rows):
        return tidy([], ["panel", "goal"])
    several = len(set(where.values())) > 1
    names = [
        ", ".join([*(where[panel] if several else ()), f"{reference} / {optimizer}"])
        for panel, reference, optimizer in zip(rows["panel"], rows["reference"], rows["optimizer"], strict=True)
    ]
    rows = rows.assign(goal=rows["panel"].map(goals), panel=names)
    counts = rows.groupby("panel")["goal"].transform("nunique")
    return rows[counts > 1].reset_index(drop=True)


@figure("token_ratio_goals", of=Comparisons, compute=compute_goals, panel="panel")
def draw_goals(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a line with intervals for every target, the hardest darkest; points are offset so that they do not
    overlap."""
    shown = style.near(table["token_ratio"], table[["low", "high"]], 2.0)
    style.batch_axes(axes, table, [*shown, 1.0], "token ratio", table["batch_size"])
    axes.axhline(1.0, color=style.GREY, linewidth=0.6, zorder=1)
    goals, ends = style.shades_of_targets(table["goal"], str(table["target"].iloc[0])), []
    for index, (goal, colour) in enumerate(goals.items()):
        curve = table[table["goal"] == goal].sort_values("batch_size")
        look = style.MarkStyle(colour, style.MARKERS[index % len(style.MARKERS)], "-")
        aside = 1.05 ** (index - (len(goals) - 1) / 2)
        axes.plot(curve["batch_size"] * aside, curve["token_ratio"], color=look.colour, linewidth=0.9, zorder=3)
        style.points(axes, curve, "batch_size", "token_ratio", look, aside=aside)
        last = curve.iloc[-1]
        ends.append((last["batch_size"] * aside, last["token_ratio"], f"{goal:g}", look.colour))
    style.label_ends(axes, ends)
