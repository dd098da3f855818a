"""What diagnostics record along training: the largest attention logit, and what steps do to every matrix.

As in the figures of MERIT (ICML 2025, arXiv 2508.20577) for the first and the last layer and about its clip, and of
LAMB (arXiv 1904.00962) about trust ratios. The logit is q.k times the scale of the attention, 1/sqrt(d_k) unless the
model uses another; its largest value is over the examples of a step, the heads and the unmasked pairs of positions (the
paper does not say whether masked pairs count).
"""

import itertools
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.findings import Analysis
from extensions.layers.along_training import LOGITS, MATRICES, QUANTITIES

_LOGITS = ["panel", "optimizer", "batch_size", "lr", *LOGITS, "example_unit"]
_MATRICES = ["panel", "optimizer", "batch_size", *MATRICES, "example_unit"]

_LOG_FROM = 10.0  # Ratio of the largest to the smallest logit above which the axis is logarithmic


def _recorded(answers: Sequence[Answer], name: str) -> Iterator[pd.DataFrame]:
    """Yield the curves of a name of every optimizer at every batch size."""
    for answer in answers:
        for size, table in answer.along.get(name, {}).items():
            if len(table):
                yield table.assign(optimizer=answer.group.optimizer, batch_size=size)


def compute_logits(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows of the curves, see :func:`extensions.layers.along_training.attention_logits`; none if nothing was
    recorded.

    There is a panel for the first and the last layer at the smallest and the largest batch size that all optimizers
    with a record share; if they share none, at the one that most of them have. ``lr`` is the best learning rate. An
    optimizer without a record at a batch size has one row without numbers there.
    """
    tables = list(_recorded(answers, "max_attention_logits"))
    if not tables:
        return tidy([], _LOGITS)
    logits = pd.concat(tables)
    recorded = logits.groupby("batch_size")["optimizer"].nunique()
    most = recorded.index[recorded == recorded.max()]
    shared = {most.min(), most.max()} if recorded.max() == logits["optimizer"].nunique() else {most.min()}
    rows = []
    for layer, batch_size in itertools.product(sorted({1, int(logits["layer"].max())}), sorted(shared)):
        panel = logits[(logits["layer"] == layer) & (logits["batch_size"] == batch_size)]
        for answer in answers:
            own = panel.loc[panel["optimizer"] == answer.group.optimizer, LOGITS].astype(float)
            about = {
                "panel": f"layer {layer}, batch size {batch_size}",
                "optimizer": answer.group.optimizer,
                "batch_size": batch_size,
                "lr": next((point.best_lr for point in answer.points if point.batch_size == batch_size), None),
                "example_unit": answer.group.example_unit,
            }
            rows += [about | row for row in own.to_dict("records") or [{"layer": float(layer)}]]
    return tidy(rows, _LOGITS)


@figure(
    "max_attention_logit",
    of=Analysis,
    main=False,
    compute=compute_logits,
    panel="panel",
    columns=2,
    title="Largest attention logit",
    caption="Largest attention logit (q.k times the scale of the attention; no unit) over the examples of a step, "
    "the heads and the unmasked pairs of positions, against the data seen in {example_unit}s, at the best "
    "learning rate. Panels: first and last layer at the smallest and the largest batch size that the optimizers "
    "share. Lines are medians over seeds, bands their range.",
)
def draw_logits(axes: Axes, table: pd.DataFrame) -> None:
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
    for name, look, part in _lines(table, "max_attention_logit"):
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


def compute_matrices(answers: Sequence[Answer]) -> pd.DataFrame:
    """Return rows of the curves, see :func:`extensions.layers.along_training.optimizer_steps`, at the largest batch
    size at which most optimizers have a record; none if nothing was recorded."""
    tables = list(_recorded(answers, "optimizer_steps"))
    if not tables:
        return tidy([], _MATRICES)
    sizes = [int(table["batch_size"].iloc[0]) for table in tables]
    rows = pd.concat(tables)
    rows = rows[rows["batch_size"] == max(sizes, key=lambda size: (sizes.count(size), size))]
    # an optimizer without trust ratios gets rows without numbers, so that it keeps its colour in every panel
    shown = [name for name in QUANTITIES if name in set(rows["quantity"])]
    whole = pd.MultiIndex.from_product([shown, list(dict.fromkeys(rows["optimizer"]))], names=["quantity", "optimizer"])
    table = whole.to_frame(index=False).merge(rows.drop(columns="batch_size"), how="left")
    about = {"panel": table["quantity"].map(QUANTITIES), "batch_size": rows["batch_size"].iloc[0]}
    return table.assign(**about, example_unit=answers[0].group.example_unit)[_MATRICES]


@figure(
    "optimizer_step",
    of=Analysis,
    main=False,
    compute=compute_matrices,
    panel="panel",
    title="What steps do to every matrix",
    caption="Trust ratios, clipped entries and norms at batch size {batch_size} and its best learning rate, against "
    "the data seen in {example_unit}s. Thin lines are the matrices of the model, medians over seeds; thick ones their "
    "medians. An optimizer without trust ratios has no lines there.",
)
def draw_matrices(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a thin line for every matrix and a thick one for their median, shares on a linear axis."""
    style.log_scale(axes, "x", table["examples"], most=style.most_ticks(axes))
    if "clipped_share" not in set(table["quantity"]) and (table["value"] > 0).any():
        style.log_scale(axes, "y", table["value"][table["value"] > 0])
    ends = []
    for name, look, rows in _lines(table, "value"):
        for _, one in rows.groupby("matrix", sort=False):
            axes.plot(one["examples"], one["value"], color=look.colour, linewidth=0.4, alpha=0.45)
        middle = rows.groupby("examples")["value"].median()
        axes.plot(middle.index, middle, color=look.colour, linestyle=look.dashes, zorder=3)
        ends.append((middle.index[-1], middle.iloc[-1], style.literal(name), look.colour))
    style.label_ends(axes, ends)
    axes.set_xlabel(f"data ({table['example_unit'].iloc[0]}s)")


def _lines(table: pd.DataFrame, value: str) -> Iterator[tuple[str, style.MarkStyle, pd.DataFrame]]:
    """Yield every optimizer that has numbers, its style, which it has in every panel, and its rows."""
    for name, look, _ in style.each(table):
        rows = table[(table["optimizer"] == name) & table[value].notna()]
        if len(rows):
            yield name, look, rows
