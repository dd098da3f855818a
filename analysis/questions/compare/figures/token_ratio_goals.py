"""The token ratio against the batch size with a line for every target.

Essential AI (2025, arXiv 2505.02222), equation 2: the ratio does not fall with the batch size, at any loss.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.questions.compare.answer import Comparisons
from analysis.questions.compare.figures.ratios_and_times import compute_ratio


def compute(comparisons: Comparisons) -> pd.DataFrame:
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


@figure("token_ratio_goals", of=Comparisons, compute=compute, panel="panel")
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a line with intervals for every target, the hardest darkest; points are offset so that they do not
    overlap."""
    shown = style.near(table["token_ratio"], table[["low", "high"]], 2.0)
    style.batch_axes(axes, table, [*shown, 1.0], "token ratio", table["batch_size"])
    axes.axhline(1.0, color=style.GREY, linewidth=0.6, zorder=1)
    goals, ends = style.shades_of_targets(table["goal"], str(table["target"].iloc[0])), []
    for place, (goal, colour) in enumerate(goals.items()):
        own = table[table["goal"] == goal].sort_values("batch_size")
        look = style.MarkStyle(colour, style.MARKERS[place % len(style.MARKERS)], "-")
        aside = 1.05 ** (place - (len(goals) - 1) / 2)
        axes.plot(own["batch_size"] * aside, own["token_ratio"], color=look.colour, linewidth=0.9, zorder=3)
        style.points(axes, own, "batch_size", "token_ratio", look, aside=aside)
        last = own.iloc[-1]
        ends.append((last["batch_size"] * aside, last["token_ratio"], f"{goal:g}", look.colour))
    style.label_ends(axes, ends)
