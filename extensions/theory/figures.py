"""Figures of cbs theory: best learning rates on the noisy quadratic, and noise scale against temperature."""

import itertools

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.formatting import number
from analysis.present import style
from analysis.present.figures import along, figure, tidy
from extensions.theory.quadratic import QuadraticAnswer
from extensions.theory.temperature import Temperature

_PANELS = {"constant": "best constant learning rate", "pieces": "best learning rate over a run"}


def compute_quadratic(result: QuadraticAnswer) -> pd.DataFrame:
    """Return rows of two panels: ``lr`` per batch size, and ``lr`` along the ``share`` of the steps of a run whose rate
    is constant on pieces, a pair of rows for each piece."""
    rows = []
    for each in result.schedules:
        own = {"batch_size": each.batch_size, "panel": _PANELS["constant"], "lr": each.constant_lr}
        rows.append({"kind": "constant"} | own)
    for each in result.schedules:
        shares = np.repeat(np.linspace(0.0, 1.0, len(each.lrs) + 1), 2)[1:-1]
        own = {"batch_size": each.batch_size, "panel": _PANELS["pieces"], "steps": each.steps}
        rows += [own | row for row in along("pieces", share=shares, lr=np.repeat(each.lrs, 2))]
    return tidy(rows, ["panel", "kind", "batch_size", "share", "lr", "steps"])


@figure("quadratic_rates", of=QuadraticAnswer, compute=compute_quadratic, panel="panel")
def draw_quadratic(axes: Axes, table: pd.DataFrame) -> None:
    """Draw rates against batch size, or stairs over the share of a run, one for each batch size."""
    colours = style.shades(table["batch_size"])
    if table["kind"].iloc[0] == "constant":
        style.log_axes(axes, table["batch_size"], table["lr"], "batch size (samples)", "learning rate",
                       most=style.most_ticks(axes))  # fmt: skip
        axes.plot(table["batch_size"], table["lr"], color=style.GREY, zorder=2)
        for row in table.itertuples():
            axes.plot([row.batch_size], [row.lr], "o", color=colours[row.batch_size], zorder=3)
        return
    style.log_scale(axes, "y", table["lr"])
    axes.set_xlim(0.0, 1.0)
    style.axis_label(axes, "x", "share of the steps to the target")
    style.axis_label(axes, "y", "learning rate")
    ends = []
    for size, own in table.groupby("batch_size"):
        axes.plot(own["share"], own["lr"], color=colours[size])
        text = f"B={style.plain(size)}, {number(own['steps'].iloc[0])} steps"
        ends.append((1.0, own["lr"].iloc[-1], text, colours[size]))
    style.label_ends(axes, ends)


_COLUMNS = ["panel", "optimizer", "kind", "lr", "batch_size", "temperature", "noise_scale", "low", "high"]


def compute_temperature(result: Temperature) -> pd.DataFrame:
    """Return rows of the kinds ``point``, and ``inverse``: the line 1/T through the middle of the points of one law."""
    rows = []
    several = len({(point.sweep, point.workload) for point in result.points}) > 1
    for (sweep, workload, name), group in itertools.groupby(
        result.points, lambda each: (each.sweep, each.workload, each.optimizer)
    ):
        own, of = list(group), {"panel": f"{sweep}, {workload}" if several else "", "optimizer": name}
        ratios, values = (np.log([f(p) for p in own]) for f in (lambda p: p.lr / p.batch_size, lambda p: p.value))
        for point in own:
            about = of | {"kind": "point", "lr": point.lr, "batch_size": point.batch_size}
            ends = {"low": point.interval[0], "high": point.interval[1]}
            rows.append(about | ends | {"temperature": point.lr / point.batch_size, "noise_scale": point.value})
        for end in (ratios.min(), ratios.max()):
            value = float(np.exp(values.mean() - (end - ratios.mean())))
            rows.append(of | {"kind": "inverse", "temperature": float(np.exp(end)), "noise_scale": value})
    return tidy(rows, _COLUMNS)


@figure("temperature", of=Temperature, compute=compute_temperature, panel="panel")
def draw_temperature(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the points with both axes logarithmic; the dashed line has slope -1."""
    axes.set(xscale="log", yscale="log", xlabel="learning rate / batch size", ylabel="noise scale (examples)")
    for name, look, (line, points) in style.each(table, "inverse", "point"):
        axes.plot(line["temperature"], line["noise_scale"], "--", color=look.colour, linewidth=0.8)
        style.points(axes, points, "temperature", "noise_scale", look)
        del name
