"""Steps against batch size, measured in a sweep and predicted by the noisy quadratic with the model's spectrum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.extensions.theory.prediction.result import Prediction, Predictions, Variation
from analysis.present import style
from analysis.present.figures import about, figure, tidy
from analysis.present.figures.curves import fitted, measured

_COLUMNS = ["panel", "optimizer", "kind", "assumption", "batch_size", "steps", "low", "high"]
_RESOLUTION = 60
_MEASURED, _PREDICTED = style.looks(["measured", "predicted"]).values()
_THIN: dict[str, Any] = {"color": style.GREY, "linewidth": 0.7, "zorder": 2}


def compute(predictions: Predictions) -> pd.DataFrame:
    """Return rows of four kinds (column ``kind``).

    ``point``: measured steps of one batch size with the range over seeds; ``fit``: the curve fitted to them with its
    interval; ``predicted``: the prediction with its interval; ``assumed``: the prediction under another assumption,
    named in ``assumption``.
    """
    rows = []
    for entry in predictions.entries:
        panel = f"{entry.answer.group.optimizer}: {entry.mapped.words}"
        if len({str(each.answer.target) for each in predictions.entries}) > 1:
            panel += f", {str(entry.answer.target).replace('_', ' ')}"
        rows += [{"panel": panel} | row | about(entry.answer) for row in _rows(entry)]
    return tidy(rows, _COLUMNS) if any(row["kind"] == "predicted" for row in rows) else pd.DataFrame()


def _rows(entry: Prediction) -> Iterator[dict[str, Any]]:
    yield from (measured(point) for point in entry.answer.points if point.reached)
    if entry.answer.fit is not None:
        sizes = entry.answer.fit.batch_sizes
        curve = fitted(entry.answer, np.geomspace(sizes[0], sizes[-1], _RESOLUTION))
        yield from (row for row in curve if row["kind"] == "fit")
    yield from _predicted(entry, entry.main, "predicted")
    for other in entry.others:
        yield from _predicted(entry, other, "assumed")


def _predicted(entry: Prediction, variation: Variation, kind: str) -> Iterator[dict[str, Any]]:
    for size, steps in zip(entry.batch_sizes, variation.steps, strict=False):
        if steps.value is not None:
            row = {"kind": kind, "assumption": variation.words, "label": variation.label, "batch_size": size}
            yield row | {"steps": steps.value} | dict(zip(("low", "high"), steps.interval, strict=True))


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of what is measured and what is predicted, under which assumption."""
    percent = style.percent(table)
    assumption = table.loc[table["kind"] == "predicted", "assumption"].iloc[0]
    handles = [
        style.handle(f"measured, range over seeds; fit and its {percent}", _MEASURED),
        style.handle(f"predicted, {assumption}, and its {percent}", _PREDICTED),
    ]
    if (table["kind"] == "assumed").any():
        handles.append(style.mark("predicted under other assumptions, named at the line", linewidth=0.7))
    return handles


@figure("prediction", of=Predictions, compute=compute, panel="panel", columns=2, marks=marks)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw one panel per optimizer."""
    kinds = ("point", "fit", "predicted", "assumed")
    points, fit, predicted, assumed = (table[table["kind"] == kind] for kind in kinds)
    label = f"steps to {style.words(table['target'].iloc[0])}"
    style.batch_axes(axes, table, table[["steps", "low", "high"]], label, points["batch_size"])
    style.curve(axes, fit, "batch_size", "steps", _MEASURED)
    style.points(axes, points, "batch_size", "steps", _MEASURED)
    style.curve(axes, predicted, "batch_size", "steps", _PREDICTED, marker=_PREDICTED.marker)
    ends = []
    for _, rows in assumed.groupby("assumption", sort=False):
        axes.plot(rows["batch_size"], rows["steps"], **_THIN)
        last = rows.iloc[-1]
        ends.append((last["batch_size"], last["steps"], style.literal(last["label"]), style.GREY))
    style.label_ends(axes, ends)
