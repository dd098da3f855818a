"""The noise scale against the loss, a curve for every size of the model.

McCandlish et al. (2018), section 2.3: it grows as the loss falls; Kaplan et al. (2020), section 5.1: at equal loss it
hardly depends on the size of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import about, figure, tidy

_COLUMNS = ["panel", "curve", "optimizer", "parameters", "loss", "noise_scale", "low", "high"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return one row per optimizer, workload, model size and target with a noise scale, in the order of the losses; no
    rows for a curve with only one target.

    ``noise_scale`` is the simple one in examples with its interval ``low`` to ``high``, and ``loss`` the value of the
    target, whose metric is in ``panel`` with the workload.
    """
    sizes = {answer.group.parameters for answer in answers}
    rows = []
    for answer in answers:
        group, noise = answer.group, answer.noise_scale
        if noise.value is not None:
            ends = dict(zip(("low", "high"), noise.interval, strict=True))
            told = f", {group.parameters:,} parameters" if len(sizes) > 1 and group.parameters else ""
            names = {"panel": f"{group.workload}, {style.words(answer.target.metric)}", "curve": group.optimizer + told}
            numbers = {"parameters": group.parameters, "loss": answer.target.value, "noise_scale": noise.value}
            rows.append(about(answer) | names | numbers | ends)
    table = tidy(rows, _COLUMNS)
    several = table.groupby(["panel", "curve"])["loss"].transform("nunique") > 1
    return table[several].sort_values("loss", kind="stable").reset_index(drop=True)


@figure(
    "noise_against_loss",
    of=Analysis,
    compute=compute,
    panel="panel",
    whole=True,
    title="Noise scale against loss",
    caption="The simple noise scale in the second half of the steps to every target, in {example_unit}s, against the "
    "target, a curve for every optimizer and size of the model; bars are {percent} intervals, an arrow is an open end.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
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
