"""The noise scale along training, plain and matched, beside the critical batch size it is meant to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.definitions import math_symbol
from analysis.estimate.noise import PLAIN
from analysis.present import style
from analysis.present.figures import FIGURES, FigureKind
from analysis.present.figures.noise_scale_run import SYMBOLS

if TYPE_CHECKING:
    from analysis.estimate.result import Answer

_COLUMNS = [
    "optimizer",
    "batch_size",
    "progress",
    "examples",
    "simple_noise_scale",
    "matched_geometry",
    "matched_noise_scale",
    "definition",
    "critical_batch_size",
    "critical_low",
    "critical_high",
    "example_unit",
]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """One row per optimizer, batch size and bin of the way to the target.

    ``progress`` is the share of the steps to target at the middle of the bin, ``simple_noise_scale`` and
    ``matched_noise_scale`` the ratios of the mean moments in the bin, pooled over seeds; NaN where a mean is not
    positive. Where nothing was measured an optimizer has one row without numbers.
    """
    tables = []
    for answer in answers:
        low, high = answer.interval
        about = {
            "optimizer": answer.group.optimizer,
            "matched_geometry": answer.matched_geometry,
            "definition": answer.definition,
            "critical_batch_size": answer.critical_batch_size,
            "critical_low": low,
            "critical_high": high,
            "example_unit": answer.group.example_unit,
        }
        parts = [
            entry.trajectory.assign(batch_size=size, **about)
            for size, entry in answer.noise.items()
            if len(entry.trajectory)
        ]
        tables += parts or [pd.DataFrame([about])]
    table = pd.concat([table.reindex(columns=_COLUMNS) for table in tables], ignore_index=True)
    numbers = [name for name in _COLUMNS if name not in ("optimizer", "matched_geometry", "definition", "example_unit")]
    return table.astype(dict.fromkeys(numbers, float))


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Noise scales on a log axis against the share of the way to the target: of the batch size nearest to B_crit
    (without one, of the middle one) the plain one solid and the matched one dashed, the plain ones of the others in
    grey; B_crit as a dotted line with its interval as a band."""
    lines: dict[str, tuple[str, Any, str]] = {"simple_noise_scale": (style.COLOURS[0], "-", SYMBOLS[PLAIN])}
    if (geometry := table["matched_geometry"].iloc[0]) != PLAIN:
        lines["matched_noise_scale"] = (style.COLOURS[1], (0, (4, 1.5)), SYMBOLS[geometry])
    measured = table[table[list(lines)].notna().any(axis=1)]
    if measured.empty:
        style.empty(axes, "no noise scale was measured\non the way to the target")
        return
    critical, low, high = (table[name].iloc[0] for name in ("critical_batch_size", "critical_low", "critical_high"))
    sizes = np.sort(measured["batch_size"].unique())
    chosen = sizes[np.abs(np.log(sizes / critical)).argmin()] if np.isfinite(critical) else sizes[len(sizes) // 2]
    part = measured[measured["batch_size"] == chosen]
    axes.set_yscale("log")
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(*style.log_limits([*measured["simple_noise_scale"], *part[list(lines)].to_numpy().ravel(), critical]))
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
    for name, (colour, dashes, symbol) in lines.items():
        defined = part[part[name].notna()]
        dot = "o" if len(defined) == 1 else ""
        axes.plot(part["progress"], part[name], color=colour, linestyle=dashes, marker=dot, zorder=3)
        if len(defined):
            ends.append((defined["progress"].iloc[-1], defined[name].iloc[-1], symbol, colour))
    axes.set_ylim(bottom, top)
    style.label_ends(axes, ends)
    style.log_axis(axes.yaxis)
    ticks = [0, 0.25, 0.5, 0.75, 1.0] if style.most_ticks(axes) > 2 else [0, 0.5, 1.0]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel(f"share of the steps to target\nat batch size {chosen:g}")
    axes.set_ylabel(f"noise scale ({table['example_unit'].iloc[0]}s)")


def marks(table: pd.DataFrame) -> list[Line2D]:
    """The one that has no label at its end."""
    several = table[table["simple_noise_scale"].notna()].groupby("optimizer")["batch_size"].nunique().gt(1).any()
    label = f"{SYMBOLS[PLAIN]} at other batch sizes"
    return [Line2D([], [], color=style.GREY, linewidth=0.6, alpha=0.6, label=label)] if several else []


def caption(table: pd.DataFrame) -> str:
    """What is seen, in words."""
    unit = table["example_unit"].iloc[0]
    return (
        f"Gradient noise scale in {unit}s (logarithmic) along the way to the target, as a share of the steps to "
        "target, at the best learning rate. Solid: the simple noise scale at the batch size nearest to the "
        "critical one; grey: at the other batch sizes; dashed: in the geometry of the optimizer, where it was "
        "measured. Dotted with a band: critical batch size and its interval. A line breaks where an estimate is "
        "not positive."
    )


FIGURES.register("noise_scale")(
    FigureKind(compute, draw, panels=True, marks=marks, title="Noise scale along training", caption=caption)
)
