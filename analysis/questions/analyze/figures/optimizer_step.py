"""What the optimizer's steps do to every matrix along training: trust ratios, clipped entries, norms.

Like the figures of MERIT (ICML 2025, arXiv 2508.20577) about its clip and of LAMB (arXiv 1904.00962) about trust
ratios.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.findings import Analysis
from analysis.estimate.optimizer_steps import COLUMNS, QUANTITIES
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import figure, tidy

_COLUMNS = ["panel", "optimizer", "batch_size", *COLUMNS, "example_unit"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows of the curves, see :func:`analysis.estimate.optimizer_steps.optimizer_steps`, at the largest batch
    size at which most optimizers have a record; none if nothing was recorded."""
    tables = {
        (answer.group.optimizer, size): table
        for answer in answers
        for size, table in answer.optimizer_steps.items()
        if len(table)
    }
    if not tables:
        return tidy([], _COLUMNS)
    sizes = [size for _, size in tables]
    unit = answers[0].group.example_unit
    batch_size = max(sizes, key=lambda size: (sizes.count(size), size))
    rows = pd.concat(
        table.assign(optimizer=optimizer) for (optimizer, size), table in tables.items() if size == batch_size
    )
    # an optimizer without trust ratios gets rows without numbers, so that it keeps its colour in every panel
    shown = [name for name in QUANTITIES if name in set(rows["quantity"])]
    whole = pd.MultiIndex.from_product([shown, list(dict.fromkeys(rows["optimizer"]))], names=["quantity", "optimizer"])
    table = whole.to_frame(index=False).merge(rows, how="left")
    about = {"panel": table["quantity"].map(QUANTITIES), "batch_size": batch_size, "example_unit": unit}
    return table.assign(**about)[_COLUMNS]


@figure(
    "optimizer_step",
    of=Analysis,
    compute=compute,
    panel="panel",
    title="What steps do to every matrix",
    caption="Trust ratios, clipped entries and norms at batch size {batch_size} and its best learning rate, against "
    "the data seen in {example_unit}s. Thin lines are the matrices of the model, medians over seeds; thick ones their "
    "medians. An optimizer without trust ratios has no lines there.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a thin line for every matrix and a thick one for their median, shares on a linear axis."""
    style.log_scale(axes, "x", table["examples"], most=style.most_ticks(axes))
    if "clipped_share" not in set(table["quantity"]) and (table["value"] > 0).any():
        style.log_scale(axes, "y", table["value"][table["value"] > 0])
    ends = []
    for name, look, _ in style.each(table):
        rows = table[(table["optimizer"] == name) & table["value"].notna()]
        if rows.empty:
            continue
        for _, one in rows.groupby("matrix", sort=False):
            axes.plot(one["examples"], one["value"], color=look.colour, linewidth=0.4, alpha=0.45)
        middle = rows.groupby("examples")["value"].median()
        axes.plot(middle.index, middle, color=look.colour, linestyle=look.dashes, zorder=3)
        ends.append((middle.index[-1], middle.iloc[-1], style.literal(name), look.colour))
    style.label_ends(axes, ends)
    axes.set_xlabel(f"data ({table['example_unit'].iloc[0]}s)")
