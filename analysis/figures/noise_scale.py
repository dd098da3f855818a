"""The simple noise scale along training, beside the critical batch size it is meant to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import style
from analysis.figures import FIGURES, FigureKind

if TYPE_CHECKING:
    from analysis.answers import Answer

_COLUMNS = [
    "optimizer",
    "batch_size",
    "progress",
    "examples",
    "simple_noise_scale",
    "critical_batch_size",
    "critical_low",
    "critical_high",
    "example_unit",
]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """One row per optimizer, batch size and bin of the way to the target.

    ``progress`` is the share of the steps to target at the middle of the bin, ``simple_noise_scale`` the ratio of the
    mean moments in the bin, pooled over seeds; NaN where a mean is not positive. Where nothing was measured an
    optimizer has one row without numbers.
    """
    tables = []
    for answer in answers:
        low, high = answer.interval
        about = {
            "optimizer": answer.group.optimizer,
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
    numbers = [name for name in _COLUMNS if name not in ("optimizer", "example_unit")]
    return table.astype(dict.fromkeys(numbers, float))


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Noise scale on a log axis against the share of the way to the target: the batch size nearest to B_crit (without
    one, the middle one) in colour, the others in grey; B_crit as a line with its interval as a band."""
    measured = table[table["simple_noise_scale"].notna()]
    if measured.empty:
        style.empty(axes, "no noise scale was measured\non the way to the target")
        return
    critical, low, high = (table[name].iloc[0] for name in ("critical_batch_size", "critical_low", "critical_high"))
    sizes = np.sort(measured["batch_size"].unique())
    chosen = sizes[np.abs(np.log(sizes / critical)).argmin()] if np.isfinite(critical) else sizes[len(sizes) // 2]
    axes.set_yscale("log")
    axes.set_xlim(0.0, 1.0)
    values = [*measured["simple_noise_scale"], critical]
    axes.set_ylim(*style.log_limits(values))
    bottom, top = axes.get_ylim()
    ends: list[tuple[float, float, str, object]] = []
    if np.isfinite(critical):
        axes.axhspan(
            low if np.isfinite(low) else bottom,
            high if np.isfinite(high) else top,
            color=style.GREY,
            alpha=0.2,
            linewidth=0,
            zorder=0,
        )
        axes.axhline(critical, color="black", linewidth=0.9, linestyle="--", zorder=1)
        ends.append((1.0, critical, "$B_{crit}$", "black"))
    for batch_size, part in measured.groupby("batch_size"):
        if batch_size == chosen:
            continue
        axes.plot(part["progress"], part["simple_noise_scale"], color=style.GREY, linewidth=0.6, alpha=0.6, zorder=2)
    part = measured[measured["batch_size"] == chosen]
    axes.plot(part["progress"], part["simple_noise_scale"], color=style.COLOURS[0], zorder=3)
    ends.append((part["progress"].iloc[-1], part["simple_noise_scale"].iloc[-1], f"B={chosen:g}", style.COLOURS[0]))
    axes.set_ylim(bottom, top)
    style.label_ends(axes, ends)
    style.log_axis(axes.yaxis)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "0.25", "0.5", "0.75", "1"])
    axes.set_xlabel("share of the steps to target")
    axes.set_ylabel(f"$B_{{simple}}$ ({table['example_unit'].iloc[0]}s)")


FIGURES.register("noise_scale")(FigureKind(compute, draw, panels=True))
