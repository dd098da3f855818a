"""The largest attention logit along training, to see whether attention stays bounded under every optimizer.

As in the figures of MERIT (ICML 2025, arXiv 2508.20577) for the first and the last layer. The logit is q.k times the
scale of the attention, 1/sqrt(d_k) unless the model uses another; its largest value is over the examples of a step, the
heads and the unmasked pairs of positions (the paper does not say whether masked pairs count).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.attention import COLUMNS
from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import figure, tidy

_COLUMNS = ["panel", "optimizer", "batch_size", "lr", *COLUMNS, "example_unit"]

_LOG_FROM = 10.0
"""Ratio of the largest to the smallest logit above which the axis is logarithmic."""


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows of the curves, see :func:`analysis.estimate.attention.attention_logits`; none if nothing was
    recorded.

    There is a panel for the first and the last layer at the smallest and the largest batch size that all optimizers
    with a record share; if they share none, at the one that most of them have. ``lr`` is the best learning rate. An
    optimizer without a record at a batch size has one row without numbers there.
    """
    tables = [
        table.assign(optimizer=answer.group.optimizer, batch_size=size)
        for answer in answers
        for size, table in answer.attention_logits.items()
        if len(table)
    ]
    if not tables:
        return tidy([], _COLUMNS)
    logits = pd.concat(tables)
    recorded = logits.groupby("batch_size")["optimizer"].nunique()
    most = recorded.index[recorded == recorded.max()]
    shared = {most.min(), most.max()} if recorded.max() == logits["optimizer"].nunique() else {most.min()}
    rows = []
    for layer, batch_size in itertools.product(sorted({1, int(logits["layer"].max())}), sorted(shared)):
        panel = logits[(logits["layer"] == layer) & (logits["batch_size"] == batch_size)]
        for answer in answers:
            own = panel.loc[panel["optimizer"] == answer.group.optimizer, list(COLUMNS)].astype(float)
            about = {
                "panel": f"layer {layer}, batch size {batch_size}",
                "optimizer": answer.group.optimizer,
                "batch_size": batch_size,
                "lr": next((point.best_lr for point in answer.points if point.batch_size == batch_size), None),
                "example_unit": answer.group.example_unit,
            }
            rows += [about | row for row in own.to_dict("records") or [{"layer": float(layer)}]]
    return tidy(rows, _COLUMNS)


@figure(
    "max_attention_logit",
    of=Analysis,
    compute=compute,
    panel="panel",
    columns=2,
    title="Largest attention logit",
    caption="Largest attention logit (q.k times the scale of the attention; no unit) over the examples of a step, "
    "the heads and the unmasked pairs of positions, against the data seen in {example_unit}s, at the best "
    "learning rate. Panels: first and last layer at the smallest and the largest batch size that the optimizers "
    "share. Lines are medians over seeds, bands their range.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the logit against examples on a log axis: medians over seeds as lines, their range as bands.

    The axis of the logits is logarithmic if they span a factor of ten.
    """
    curves = table[table["max_attention_logit"].notna()]
    style.log_scale(axes, "x", curves["examples"], most=style.most_ticks(axes))
    low, high = curves["low"].min(), curves["high"].max()
    if low > 0 and high >= _LOG_FROM * low:
        style.log_scale(axes, "y", [low, high])
    elif len(curves):
        margin = 0.06 * (high - low) or 0.5
        axes.set_ylim(low - margin, high + margin)
    ends = []
    for name, look, _ in style.each(table):
        part = curves[curves["optimizer"] == name]
        if part.empty:
            continue
        axes.plot(
            part["examples"], part["max_attention_logit"], color=look.colour, linestyle=look.dashes, zorder=3,
            marker=look.marker, markersize=3, markevery=max(1, len(part) // 6),
        )  # fmt: skip
        if part["seeds"].max() > 1:
            style.band(axes, part, "examples", look.colour)
        end = part.iloc[-1]
        ends.append((end["examples"], end["max_attention_logit"], style.literal(name), look.colour))
    style.label_ends(axes, ends)
    axes.set_xlabel(f"data ({table['example_unit'].iloc[0]}s)")
    axes.set_ylabel("largest attention logit\n(unmasked pairs)")
