"""The noise scale against the critical batch size over workloads and targets.

McCandlish et al. (2018), figure 4: the cheap predictor against what it predicts; all points of an exact predictor lie
on one line.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import CRITICAL, about, figure, tidy

_NOISE = ["noise_scale", "low", "high"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per optimizer, workload and target with both quantities; no rows if there is only one workload and
    target, whose own figures show both.

    ``noise_scale`` is the simple one with its interval ``low`` to ``high``; the critical batch size has the columns of
    :data:`analysis.present.figures.CRITICAL`. Both are in examples; ``parameters`` is the size of the model, ``loss``
    the value of the target.
    """
    rows = []
    for answer in answers:
        if answer.noise_scale.value is not None and answer.critical_batch_size is not None:
            noise = dict(zip(_NOISE, (answer.noise_scale.value, *answer.noise_scale.interval), strict=True))
            model = {"workload": answer.group.workload, "parameters": answer.group.parameters}
            rows.append(about(answer) | model | {"loss": answer.target.value} | noise)
    several = len({(row["workload"], row["target"]) for row in rows}) > 1
    return tidy(rows if several else [], ["workload", "optimizer", "target", "parameters", "loss", *CRITICAL, *_NOISE])


@figure(
    "noise_against_critical",
    of=Analysis,
    compute=compute,
    whole=True,
    title="Noise scale against critical batch size",
    caption="The simple noise scale against the critical batch size, one point for every workload, optimizer and "
    "target, with {percent} intervals; an open end is an arrow or left out. On the grey line they are equal.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
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
