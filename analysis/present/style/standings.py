"""Conditions that are as good as the best, worse, or neither, as full, empty and half-full marks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.margin import Standing
from analysis.present.style import MarkStyle, mark

_FILLS = {Standing.EQUAL: "full", Standing.WORSE: "none", Standing.UNKNOWN: "bottom"}

_SIZE = 5.5
"""Of the marks, in points: half a mark can be told from a whole one on paper."""


def standing_marks(table: pd.DataFrame, words: Sequence[str]) -> list[Line2D]:
    """Return key entries of the values of the column ``standing`` that occur; ``words`` are for equal, worse and
    neither."""
    return [
        mark(said, marker="o", markersize=_SIZE, linestyle="", fillstyle=fill, markerfacecoloralt="white")
        for said, (standing, fill) in zip(words, _FILLS.items(), strict=True)
        if (table["standing"] == standing).any()
    ]


def standing_points(axes: Axes, rows: pd.DataFrame, y: str, look: MarkStyle, *, aside: float = 1.0) -> None:
    """Draw a line through the rows of one optimizer against the batch size, times ``aside``, their intervals, and marks
    by their ``standing``."""
    axes.plot(rows["batch_size"] * aside, rows[y], color=look.colour, linestyle=look.dashes, zorder=3)
    bars = rows.dropna(subset=["low", "high"])
    axes.vlines(bars["batch_size"] * aside, bars["low"], bars["high"], color=look.colour, linewidth=0.7, zorder=3)
    for standing, part in rows.groupby("standing"):
        axes.plot(
            part["batch_size"] * aside, part[y], look.marker, color=look.colour, markersize=_SIZE, zorder=4,
            fillstyle=_FILLS[Standing(standing)], markerfacecoloralt="white",
        )  # fmt: skip
