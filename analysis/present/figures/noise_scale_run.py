"""The noise scale along a run, per geometry, with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.figures import FigureKind
from analysis.present.results.noise_scale_run import scales

SYMBOLS = {
    "l2": r"$B_{\mathrm{simple}}$",
    "l1": r"$B_{\ell_1}$",
    "nuclear": r"$B_{S_1}$",
    "preconditioned": r"$B_{\mathrm{pre}}$",
    "hessian": r"$B_{\mathrm{noise}}$",
    "l1_corrected": r"$B_{\ell_1}^{\mathrm{corr}}$",
    "nuclear_corrected": r"$B_{S_1}^{\mathrm{corr}}$",
}


def compute(run: dict[str, Any]) -> pd.DataFrame:
    """One row per phase and geometry.

    The columns are those of :func:`analysis.present.results.noise_scale_run.scales`; ``noise_scale`` is NaN where
    undefined, ``low`` and ``high`` are NaN where the interval is open.

    Args:
        run: :meth:`cbs.noise_scale.run.NoiseScaleRun.to_json`.
    """
    numbers = ["noise_scale", "low", "high", "signal", "noise"]
    return scales(run).frame().astype(dict.fromkeys(numbers, float))


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Noise scales against examples seen, corrected ones in place of what they correct, both on log axes, with
    intervals as bars: an open end runs off the axes, and a hollow marker has no interval."""
    better = table["geometry"].isin([name.removesuffix("_corrected") for name in set(table["geometry"]) if "_" in name])
    table = table[~better]
    measured = table[table["noise_scale"].notna() & (table["noise_scale"] > 0)]
    if measured.empty:
        style.empty(axes, "every estimate is undefined:\nthe run is too short for its noise")
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    values = [*measured["noise_scale"], *measured["low"], *measured["high"]]
    middle = float(np.exp(np.log(measured["noise_scale"]).mean()))
    axes.set_ylim(*style.log_limits([value for value in values if middle / 1e3 < value < 1e3 * middle]))
    bottom, top = axes.get_ylim()
    geometries = list(dict.fromkeys(table["geometry"]))
    looks = style.looks(geometries)
    ends = []
    for place, geometry in enumerate(geometries):
        part = measured[measured["geometry"] == geometry]
        if part.empty:
            continue
        colour, marker = looks[geometry]
        # Side by side, so that the bars of one phase do not lie on each other.
        x = part["examples"] * 1.05 ** (place - len(geometries) / 2)
        known = part["low"].notna() | part["high"].notna()
        low, high = part["low"].fillna(bottom / 10).clip(lower=bottom / 10), part["high"].fillna(10 * top)
        axes.vlines(x[known], low[known], high[known], color=colour, linewidth=0.8, alpha=0.7, zorder=2)
        axes.plot(x, part["noise_scale"], color=colour, linewidth=1.0, zorder=3)
        for shown, fill in ((known, colour), (~known, "white")):
            axes.plot(
                x[shown], part["noise_scale"][shown], color=colour, marker=marker, markersize=3.5, linewidth=0,
                markerfacecolor=fill, markeredgewidth=0.8, zorder=4,
            )  # fmt: skip
        label = SYMBOLS.get(geometry, geometry) + (" (matched)" if part["matched"].iloc[0] else "")
        ends.append((float(x.iloc[-1]), float(part["noise_scale"].iloc[-1]), label, colour))
    axes.set_ylim(bottom, top)
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis)
    style.label_ends(axes, ends)
    unit = table["example_unit"].iloc[0]
    axes.set_xlabel(f"{unit}s seen")
    axes.set_ylabel(f"noise scale ({unit}s)")


NOISE_SCALE_RUN = FigureKind(compute, draw)
