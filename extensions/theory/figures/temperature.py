"""Noise scale against learning rate over batch size, with the line of 1/T."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.figures import figure, tidy
from extensions.theory.temperature import Temperature

_COLUMNS = ["panel", "optimizer", "kind", "lr", "batch_size", "temperature", "noise_scale", "low", "high"]


def compute(found: Temperature) -> pd.DataFrame:
    """Return rows of the kinds ``point``, and ``inverse``: the line 1/T through the middle of the points of one law."""
    rows = []
    several = len({(point.sweep, point.workload) for point in found.points}) > 1
    for (sweep, workload, name), group in itertools.groupby(
        found.points, lambda each: (each.sweep, each.workload, each.optimizer)
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


@figure("temperature", of=Temperature, compute=compute, panel="panel")
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the points with both axes logarithmic; the dashed line has slope -1."""
    axes.set(xscale="log", yscale="log", xlabel="learning rate / batch size", ylabel="noise scale (examples)")
    for name, look, (line, points) in style.each(table, "inverse", "point"):
        axes.plot(line["temperature"], line["noise_scale"], "--", color=look.colour, linewidth=0.8)
        style.points(axes, points, "temperature", "noise_scale", look)
        del name
