"""Predicted over measured loss, for the runs that were fitted and for those that were left out."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatterMathtext

from analysis.extensions.theory.loss import Losses
from analysis.extensions.theory.loss.holdout import AXES, along
from analysis.phrases import number
from analysis.present import style
from analysis.present.figures import figure, tidy

_LARGEST = 1e12
"""Value above which ticks are powers of ten."""

_COLUMNS = ["form", "kind", "panel", "x", "percent_off"]


def compute(losses: Losses) -> pd.DataFrame:
    """Return one row per axis of a holdout, form and run: ``percent_off`` is 100 (predicted/measured - 1) for the form
    fitted without the runs of kind ``left out``."""
    rows = []
    for one in losses.holdouts:
        panel, kinds = f"{AXES[one.axis]}, from {number(one.start)} left out", np.array(["fitted", "left out"])
        for entry in one.entries:
            if entry.log_ratio is not None:
                about = {"form": entry.form, "axis": one.axis, "start": one.start, "error": entry.error}
                off, kind = 100 * np.expm1(entry.log_ratio), kinds[one.left_out.astype(int)]
                each = zip(kind, along(losses.runs, one.axis), off, strict=True)
                rows += [about | {"panel": panel, "kind": name, "x": x, "percent_off": y} for name, x, y in each]
    return tidy(rows, _COLUMNS)


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of the forms, and of open marks."""
    looks = style.looks(table["form"])
    forms = [style.handle(name, look, line=False) for name, look in looks.items()]
    return [*forms, style.mark("fitted", marker="o", linestyle="", markerfacecolor="white")]


@figure("loss_holdout", of=Losses, compute=compute, panel="panel", columns=2, marks=marks)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw one mark per run and form; forms are offset."""
    about = table.iloc[0]
    style.log_scale(axes, "x", table["x"], most=style.most_ticks(axes))
    if table["x"].max() > _LARGEST:
        axes.xaxis.set_major_formatter(LogFormatterMathtext())
    style.axis_label(axes, "x", AXES[about["axis"]])
    style.axis_label(axes, "y", "predicted over measured loss (%)")
    axes.axhline(0.0, color=style.GREY, linewidth=0.6, zorder=1)
    axes.axvline(about["start"] * 0.93, color=style.GREY, linestyle=":", linewidth=0.9, zorder=1)
    looks = style.looks(table["form"])
    for place, (name, look) in enumerate(looks.items()):
        own = table[table["form"] == name]
        for kind, face in (("fitted", "white"), ("left out", look.colour)):
            rows = own[own["kind"] == kind]
            x = rows["x"] * 1.03 ** (place - (len(looks) - 1) / 2)
            axes.plot(
                x, rows["percent_off"], look.marker, color=look.colour, markerfacecolor=face, markersize=3,
                markeredgewidth=0.6, zorder=3,
            )  # fmt: skip
