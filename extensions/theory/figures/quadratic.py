"""The best learning rate of SGD on the noisy quadratic: against batch size, and its shape over a run.

Zhang et al. (2019, arXiv:1907.04164), section 3: small batches want a rate that falls all along, large ones the largest
stable rate until shortly before the end.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.figures import along, figure, tidy
from extensions.theory.quadratic import QuadraticAnswer

_PANELS = {"constant": "best constant learning rate", "pieces": "best learning rate over a run"}


def compute(found: QuadraticAnswer) -> pd.DataFrame:
    """Return rows of two panels: ``lr`` per batch size, and ``lr`` along the ``share`` of the steps of a run whose rate
    is constant on pieces, a pair of rows for each piece."""
    rows = []
    for each in found.schedules:
        own = {"batch_size": each.batch_size, "panel": _PANELS["constant"], "lr": each.constant_lr}
        rows.append({"kind": "constant"} | own)
    for each in found.schedules:
        shares = np.repeat(np.linspace(0.0, 1.0, len(each.lrs) + 1), 2)[1:-1]
        own = {"batch_size": each.batch_size, "panel": _PANELS["pieces"], "steps": each.steps}
        rows += [own | row for row in along("pieces", share=shares, lr=np.repeat(each.lrs, 2))]
    return tidy(rows, ["panel", "kind", "batch_size", "share", "lr", "steps"])


@figure("quadratic_rates", of=QuadraticAnswer, compute=compute, panel="panel")
def draw(axes: Axes, table: pd.DataFrame) -> None:
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
        text = f"B={style.plain(size)}, {style.plain(own['steps'].iloc[0])} steps"
        ends.append((1.0, own["lr"].iloc[-1], text, colours[size]))
    style.label_ends(axes, ends)
