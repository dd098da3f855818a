"""The noise scale along training, simple and matched, beside the critical batch size that it is meant to predict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.definitions import math_symbol
from analysis.estimate.findings import Analysis
from analysis.estimate.noise import PLAIN
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import about, figure, tidy

_BOTH = ["simple_noise_scale", "matched_noise_scale"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per optimizer, batch size and bin of progress to the target; none for optimizers without
    measurements.

    ``progress`` is the fraction of the steps to target at the middle of the bin; ``simple_noise_scale`` and
    ``matched_noise_scale`` are ratios of mean moments in the bin, pooled over seeds, NaN if a mean is not positive.
    """
    rows = []
    for answer in answers:
        for size, entry in answer.noise.items():
            if entry.trajectory.reindex(columns=_BOTH).notna().any(axis=None):
                both = (("simple", entry.plain), ("matched", entry.geometry))
                own = {"batch_size": size, "matched_geometry": answer.matched_geometry}
                own |= {f"{kind}_symbol": f"${of.symbol}$" for kind, of in both if of}
                rows += [row | own | about(answer) for row in entry.trajectory.to_dict("records")]
    return tidy(rows, ["optimizer", "batch_size", "progress", "examples", *_BOTH, "matched_geometry"])


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return the key entry of the line that has no label at its end."""
    measured = table[table["simple_noise_scale"].notna()]
    if not measured.groupby("optimizer")["batch_size"].nunique().gt(1).any():
        return []
    label = f"{measured['simple_symbol'].iloc[0]} at other batch sizes"
    return [style.mark(label, linewidth=0.6, alpha=0.6)]


@figure(
    "noise_scale",
    of=Analysis,
    main=False,
    compute=compute,
    panel="optimizer",
    marks=marks,
    title="Noise scale along training",
    caption="Gradient noise scale in {example_unit}s (logarithmic) along the way to the target, as a share of the "
    "steps to target, at the best learning rate. Solid: the simple noise scale at the batch size nearest to the "
    "critical one; grey: at the other batch sizes; dashed: in the geometry of the optimizer, where it was "
    "measured. Dotted with a band: critical batch size and its interval. A line breaks where an estimate is "
    "not positive.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw both noise scales at the batch size nearest B_crit (or the middle one), and the simple one at the others."""
    plain, matched = style.looks(_BOTH).values()
    lines = {"simple_noise_scale": plain}
    if table["matched_geometry"].iloc[0] != PLAIN:
        lines["matched_noise_scale"] = matched
    measured = table[table[list(lines)].notna().any(axis=1)]
    critical, low, high = (float(table[f"critical_{name}"].iloc[0]) for name in ("batch_size", "low", "high"))
    sizes = np.sort(measured["batch_size"].unique())
    chosen = sizes[np.abs(np.log(sizes / critical)).argmin()] if np.isfinite(critical) else sizes[len(sizes) // 2]
    part = measured[measured["batch_size"] == chosen]
    axes.set_xlim(0.0, 1.0)
    style.log_scale(axes, "y", [*measured["simple_noise_scale"], *part[list(lines)].to_numpy().ravel(), critical])
    bottom, top = axes.get_ylim()
    ends: list[tuple[float, float, str, object]] = []
    if np.isfinite(critical):
        band = low if np.isfinite(low) else bottom, high if np.isfinite(high) else top
        axes.axhspan(*band, color=style.GREY, alpha=0.2, linewidth=0, zorder=0)
        axes.axhline(critical, color="black", linewidth=0.9, linestyle=":", zorder=1)
        ends.append((1.0, critical, math_symbol(table["definition"].iloc[0]), "black"))
    for batch_size, other in measured.groupby("batch_size"):
        if batch_size != chosen:
            axes.plot(other["progress"], other["simple_noise_scale"], color=style.GREY, linewidth=0.6, alpha=0.6)
    for name, look in lines.items():
        known = part[part[name].notna()]
        dot = "o" if len(known) == 1 else ""
        axes.plot(part["progress"], part[name], color=look.colour, linestyle=look.dashes, marker=dot, zorder=3)
        if len(known):
            symbol = known[name.replace("noise_scale", "symbol")].iloc[-1]
            ends.append((known["progress"].iloc[-1], known[name].iloc[-1], symbol, look.colour))
    style.label_ends(axes, ends)
    ticks = [0, 0.25, 0.5, 0.75, 1.0] if style.most_ticks(axes) > 2 else [0, 0.5, 1.0]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(f"share of the steps to target\nat batch size {chosen:g}")
    axes.set_ylabel(f"noise scale ({table['example_unit'].iloc[0]}s)")
