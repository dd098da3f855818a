"""The noise scale along a run, per geometry, with intervals."""

from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.present import style
from analysis.present.figures import figure
from extensions.noise_scale.tables import CORRECTED, MeasuredRun, scales


def compute(measured_run: MeasuredRun) -> pd.DataFrame:
    """Return one row per phase and geometry; none if every estimate is undefined.

    The columns are those of :func:`extensions.noise_scale.tables.scales`; ``noise_scale`` is NaN if
    undefined, ``low`` and ``high`` are NaN if the interval is open.
    """
    numbers = ["noise_scale", "low", "high", "signal", "noise"]
    table = scales(measured_run.values).frame().astype(dict.fromkeys(numbers, float))
    return table if _measured(table).any() else table.iloc[:0]


def _measured(table: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows to draw; a corrected scale replaces the uncorrected one."""
    better = [name.removesuffix(CORRECTED) for name in set(table["geometry"]) if name.endswith(CORRECTED)]
    return ~table["geometry"].isin(better) & (table["noise_scale"] > 0)


@figure("noise_scale_run", of=MeasuredRun, name="noise_scale", compute=compute)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the noise scales, corrected ones in place of uncorrected ones; an open end extends beyond the axes, and a
    mark is hollow where neither end is known."""
    measured, unit = table[_measured(table)], table["example_unit"].iloc[0]
    looks = style.looks(measured["geometry"])
    # side by side, so that the bars of one phase do not overlap
    aside = {geometry: 1.05 ** (place - len(looks) / 2) for place, geometry in enumerate(looks)}
    along = measured["examples"] * measured["geometry"].map(aside)
    values = measured[["noise_scale", "low", "high"]].to_numpy()
    middle = float(np.exp(np.log(measured["noise_scale"]).mean()))
    near = values[(middle / 1e3 < values) & (values < 1e3 * middle)]
    style.log_axes(axes, along, near, f"{unit}s seen", f"noise scale ({unit}s)")
    bottom, top = axes.get_ylim()
    ends, hollow = [], False
    for geometry, (colour, marker, _) in looks.items():
        part = measured[measured["geometry"] == geometry]
        x = along[part.index]
        known = part["low"].notna() | part["high"].notna()
        hollow = hollow or not known.all()
        low, high = part["low"].fillna(bottom / 10).clip(lower=bottom / 10), part["high"].fillna(10 * top)
        axes.vlines(x[known], low[known], high[known], color=colour, linewidth=0.8, alpha=0.7, zorder=2)
        axes.plot(x, part["noise_scale"], color=colour, linewidth=1.0, zorder=3)
        for shown, fill in ((known, colour), (~known, "white")):
            axes.plot(
                x[shown], part["noise_scale"][shown], color=colour, marker=marker, markersize=3.5, linewidth=0,
                markerfacecolor=fill, markeredgewidth=0.8, zorder=4,
            )  # fmt: skip
        label = f"${part['symbol'].iloc[0]}$" + (" (matched)" if part["matched"].iloc[0] else "")
        ends.append((float(x.iloc[-1]), float(part["noise_scale"].iloc[-1]), label, colour))
    style.label_ends(axes, ends)
    if hollow:
        mark = style.mark("interval not known", linestyle="", marker="o", markerfacecolor="white")
        style.below(cast(Figure, axes.figure), [mark])
