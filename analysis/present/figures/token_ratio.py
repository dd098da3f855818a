"""Token ratio against batch size: how many more examples the reference needs than each of the others.

Essential AI, "Practical Efficiency of Muon" (2505.02222), equation 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.present import style
from analysis.present.figures import FIGURES, about, figure, tidy
from analysis.questions.comparison import TokenRatio
from analysis.questions.comparison.result import Comparisons


def compute(found: Comparisons) -> pd.DataFrame:
    """Rows of two kinds, see column ``kind``: ``point`` per batch size that both optimizers reached the target at,
    ``fit`` along the ratio of the fitted curves, both with their intervals."""
    rows = [
        {"panel": comparison.title, "reference": comparison.reference}
        | about(comparison.answers[0])
        | {"optimizer": ratio.optimizer}
        | row
        for comparison in found.comparisons
        for ratio in comparison.token_ratios
        for row in _rows(ratio)
    ]
    return tidy(rows, ["panel", "reference", "optimizer", "kind", "batch_size", "token_ratio", "low", "high"])


def _rows(ratio: TokenRatio) -> Iterator[dict[str, Any]]:
    names = ("batch_size", "token_ratio", "low", "high")
    for kind, part in (("point", ratio.at), ("fit", ratio.curve)):
        for at in part:
            yield {"kind": kind} | dict(zip(names, (at.batch_size, at.value, *at.interval), strict=True))


@FIGURES.register("token_ratio")
@figure(
    of=Comparisons,
    compute=compute,
    panel="panel",
    title="Token ratio",
    caption="Data that {reference} needs over the data that another optimizer needs, at the same batch size in "
    "{example_unit}s; both axes are logarithmic. Points are measured, lines the ratio of the fitted curves; bars "
    "and bands are {percent} intervals. Above the grey line the other needs less.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; points with intervals, the ratio of the fits with its band, a grey line where both need the same.

    Points of several optimizers stand a little aside, so that their intervals stay apart.
    """
    points = table[table["kind"] == "point"]
    style.log_axes(axes, points["batch_size"], [1.0, *table[["token_ratio", "low", "high"]].to_numpy(float).ravel()])
    axes.axhline(1.0, color=style.GREY, linewidth=0.6, zorder=1)
    reference = table["reference"].iloc[0]
    looks = style.looks([reference, *table["optimizer"]])
    names, key = [name for name in looks if name != reference], []
    for place, name in enumerate(names):
        own, fit = (table[(table["optimizer"] == name) & (table["kind"] == kind)] for kind in ("point", "fit"))
        style.curve(axes, fit, "batch_size", "token_ratio", looks[name])
        style.points(axes, own, "batch_size", "token_ratio", looks[name], aside=1.06 ** (place - (len(names) - 1) / 2))
        key.append(style.handle(name, looks[name], line=len(fit) > 0))
    style.key(axes, key, table["batch_size"], table[["token_ratio", "high"]].max(axis=1))
    style.batch_axes(axes, table, f"token ratio, {reference} / other", ticks=points["batch_size"])
