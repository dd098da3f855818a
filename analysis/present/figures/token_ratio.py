"""Token ratio against batch size: how many more examples the reference needs than each of the others.

Essential AI, "Practical Efficiency of Muon" (2505.02222), equation 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.present import style
from analysis.present.figures import FigureKind

if TYPE_CHECKING:
    from analysis.questions.comparison.result import Comparison

_COLUMNS = ["panel", "reference", "optimizer", "kind", "batch_size", "token_ratio", "low", "high", "confidence"]
_ABOUT = ["example_unit", "tokens_per_example", "statement"]


def compute(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Rows of three kinds, see column ``kind``: ``point`` per batch size that both optimizers reached the target at,
    ``fit`` along the ratio of the fitted curves, both with their intervals; ``statement`` where there is neither."""
    rows: list[dict[str, Any]] = []
    for comparison in comparisons:
        group = comparison.answers[0].group
        about = {
            "panel": comparison.title,
            "reference": comparison.reference,
            "confidence": comparison.answers[0].confidence,
            "example_unit": group.example_unit,
            "tokens_per_example": group.tokens_per_example,
        }
        found = []
        for ratio in comparison.ratios:
            own = about | {"optimizer": ratio.optimizer}
            for at in ratio.at:
                point = {"batch_size": at.batch_size, "token_ratio": at.value}
                found.append(own | {"kind": "point", "low": at.interval[0], "high": at.interval[1]} | point)
            if ratio.curve is not None:
                curve = zip(
                    *(getattr(ratio.curve, name) for name in ("batch_sizes", "values", "low", "high")), strict=True
                )
                names = ("batch_size", "token_ratio", "low", "high")
                found += [own | {"kind": "fit"} | dict(zip(names, values, strict=True)) for values in curve]
        rows += found or [about | {"kind": "statement", "statement": _why_empty(comparison)}]
    return pd.DataFrame(rows, columns=[*_COLUMNS, *_ABOUT])


def _why_empty(comparison: Comparison) -> str:
    if not comparison.ratios:
        return f"{comparison.reference} is the only optimizer:\nthere is none to compare it with"
    return "no batch size that two optimizers\nreached the target at"


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; points with intervals, the ratio of the fits with its band, a grey line where both need the same."""
    drawn = table[table["kind"] != "statement"]
    if drawn.empty:
        style.empty(axes, table["statement"].iloc[0])
        return
    drawn = drawn.astype(dict.fromkeys(("token_ratio", "low", "high"), float))
    points = drawn[drawn["kind"] == "point"]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*style.log_limits(points["batch_size"]))
    axes.set_ylim(*style.log_limits([1.0, *drawn[["token_ratio", "low", "high"]].to_numpy().ravel()]))
    axes.axhline(1.0, color=style.GREY, linewidth=0.8, linestyle="--", zorder=1)
    reference = table["reference"].iloc[0]
    looks = style.looks([reference, *drawn["optimizer"]])
    names = [name for name in looks if name != reference]
    key = [
        _draw_optimizer(axes, drawn[drawn["optimizer"] == name], name, looks[name], index - (len(names) - 1) / 2)
        for index, name in enumerate(names)
    ]
    style.key(axes, key, drawn["batch_size"], drawn[["token_ratio", "high"]].max(axis=1))
    style.log_axis(axes.xaxis, points["batch_size"])
    style.log_axis(axes.yaxis)
    style.token_axis(axes, table["tokens_per_example"])
    axes.set_xlabel(f"batch size ({table['example_unit'].iloc[0]}s)")
    style.axis_label(axes, "y", f"token ratio, {reference} / other")


def _draw_optimizer(axes: Axes, part: pd.DataFrame, name: str, look: tuple[str, str], place: float) -> Line2D:
    """``place`` moves the points aside a little, so that the intervals of several optimizers stay apart."""
    colour, marker = look
    points, fit = (part[part["kind"] == kind] for kind in ("point", "fit"))
    axes.plot(fit["batch_size"], fit["token_ratio"], color=colour, zorder=3)
    if len(fit) and fit["low"].notna().all():
        axes.fill_between(fit["batch_size"], fit["low"], fit["high"], color=colour, alpha=0.18, linewidth=0)
    ends, values = points[["low", "high"]].to_numpy(), points["token_ratio"].to_numpy()
    low, high = np.where(np.isnan(ends), values[:, None], ends).T
    axes.errorbar(
        points["batch_size"] * 1.06**place,
        values,
        yerr=np.maximum(0.0, [values - low, high - values]),
        fmt=marker,
        color=colour,
        elinewidth=0.8,
        zorder=4,
    )
    return axes.plot([], [], marker=marker, linestyle="-" if len(fit) else "", color=colour, label=name)[0]


TOKEN_RATIO = FigureKind(compute, draw, panels=True, by="panel")
