"""The noise scale against the critical batch size, and against the loss, over workloads and targets.

McCandlish et al. (2018), figure 4: the cheap predictor against what it predicts; all points of an exact predictor lie
on one line. Section 2.3: it grows as the loss falls; Kaplan et al. (2020), section 5.1: at equal loss it hardly depends
on the size of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.figures.of_answers import CRITICAL, about

_NOISE = ["noise_scale", "low", "high"]
_CRITICAL = ["workload", "optimizer", "target", "parameters", "loss", *CRITICAL, *_NOISE]
_LOSS = ["panel", "curve", "optimizer", "parameters", "loss", *_NOISE]


def compute(answers: Sequence[Answer], columns: Sequence[str]) -> pd.DataFrame:
    """Return one row per optimizer, workload and target with a noise scale, with these columns first.

    ``noise_scale`` is the simple one with its interval ``low`` to ``high``, and the critical batch size has the columns
    of :data:`.of_answers.CRITICAL`, all in examples; ``parameters`` is the size of the model, ``loss`` the value of the
    target.
    """
    rows = []
    for answer in answers:
        noise = answer.noise_scale
        if noise.value is not None:
            ends = dict(zip(_NOISE, (noise.value, *noise.interval), strict=True))
            model = {"workload": answer.group.workload, "parameters": answer.group.parameters}
            rows.append(about(answer) | model | {"loss": answer.target.value} | ends)
    return tidy(rows, columns)


def compute_critical(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return the rows of :func:`compute` with a critical batch size; none if there is only one workload and target,
    whose own figures show both."""
    known = [answer for answer in answers if answer.critical_batch_size is not None]
    table = compute(known, _CRITICAL)
    return table if len(table[["workload", "target"]].drop_duplicates()) > 1 else table.iloc[:0]


@figure(
    "noise_against_critical",
    of=Analysis,
    main=False,
    compute=compute_critical,
    whole=True,
    title="Noise scale against critical batch size",
    caption="The simple noise scale against the critical batch size, one point for every workload, optimizer and "
    "target, with {percent} intervals; an open end is an arrow or left out. On the grey line they are equal.",
)
def draw_critical(axes: Axes, table: pd.DataFrame) -> None:
    """Draw one mark per workload and optimizer, and the line on which both are equal."""
    critical, low, high = CRITICAL
    table = table.rename(columns={low: "x_low", high: "x_high"})
    names = table["workload"] + ", " + table["optimizer"]
    unit = table["example_unit"].iloc[0] if table["example_unit"].nunique() == 1 else "example"
    across = style.near(table[critical], table[["x_low", "x_high"]], 4)
    shown = np.concatenate([across, style.near(table["noise_scale"], table[["low", "high"]], 4)])
    style.log_axes(axes, shown, shown, f"critical batch size ({unit}s)", f"noise scale ({unit}s)")
    axes.axline((shown.min(), shown.min()), (shown.max(), shown.max()), color=style.GREY, linewidth=0.6, zorder=1)
    looks = style.looks(names)
    for name, look in looks.items():
        style.points(axes, table[names == name], critical, "noise_scale", look)
    key = [style.handle(name, look, line=False) for name, look in looks.items()]
    style.key(axes, key, table[critical], table["high"].combine_first(table["noise_scale"]))


def compute_loss(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return the rows of :func:`compute` in the order of the losses, with a ``panel`` for every workload and metric and
    a ``curve`` for every optimizer and model size; no rows for a curve with only one target."""
    table = compute(answers, _LOSS)
    if table.empty:
        return table
    metrics = {str(answer.target): style.words(answer.target.metric) for answer in answers}
    sizes = len({answer.group.parameters for answer in answers}) > 1
    told = [f", {size:,.0f} parameters" if sizes and size > 0 else "" for size in table["parameters"]]
    table["panel"] = table["workload"] + ", " + table["target"].map(metrics)
    table["curve"] = table["optimizer"] + told
    several = table.groupby(["panel", "curve"])["loss"].transform("nunique") > 1
    table = table[several].sort_values("loss", kind="stable").reset_index(drop=True)
    return table.drop(columns="workload")


@figure(
    "noise_against_loss",
    of=Analysis,
    main=False,
    compute=compute_loss,
    panel="panel",
    whole=True,
    title="Noise scale against loss",
    caption="The simple noise scale in the second half of the steps to every target, in {example_unit}s, against the "
    "target, a curve for every optimizer and size of the model; bars are {percent} intervals, an arrow is an open end.",
)
def draw_loss(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a line with marks for every curve, the loss falling to the right where a lower one is better."""
    style.log_scale(axes, "y", style.near(table["noise_scale"], table[["low", "high"]], 4))
    looks = style.looks(table["curve"])
    for name, look in looks.items():
        rows = table[table["curve"] == name]
        axes.plot(rows["loss"], rows["noise_scale"], color=look.colour, linestyle=look.dashes, zorder=3)
        style.points(axes, rows, "loss", "noise_scale", look)
    if "<" in str(table["target"].iloc[0]):
        axes.invert_xaxis()
    axes.set_xlabel(f"{table['panel'].iloc[0].rpartition(', ')[2]} at the target")
    axes.set_ylabel(f"noise scale ({table['example_unit'].iloc[0]}s)")
    style.key(axes, [style.handle(name, look) for name, look in looks.items()], table["loss"], table["noise_scale"])
