"""The saving of the best step against the batch size, with the fitted curve."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.phrases import with_interval
from analysis.present import style
from analysis.present.figures import along, figure, tidy
from analysis.questions.one_step.answer import OneStepTest


def compute(found: OneStepTest) -> pd.DataFrame:
    """Return rows of two kinds (column ``kind``): ``point`` per batch size with its interval, ``fit`` along the
    curve."""
    points = [
        {"kind": "point", "batch_size": each.batch_size, "saved": each.saved.value}
        | dict(zip(("low", "high"), each.saved.interval, strict=True))
        for each in found.points
        if (each.saved.value or 0) > 0
    ]
    noise, most = found.noise_scale, found.most.value
    if noise.value is not None and most is not None:
        sizes = np.geomspace(found.points[0].batch_size, found.points[-1].batch_size, 60)
        points += along("fit", batch_size=sizes, saved=most / (1 + noise.value / sizes))
    label = f"$B_{{noise}}$ = {with_interval(noise.value, noise.interval)}"
    about = {"label": label, "example_unit": found.about["example_unit"], "tokens_per_example": None}
    return tidy([row | about for row in points], ["kind", "batch_size", "saved", "low", "high"])


@figure("one_step", of=OneStepTest, compute=compute)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw points and the fitted curve."""
    look = style.looks(["one"])["one"]
    points, fit = (table[table["kind"] == kind] for kind in ("point", "fit"))
    values = style.near(table["saved"], table[["low", "high"]], 4)
    style.batch_axes(axes, table, values, "loss that the best step saves", points["batch_size"])
    axes.plot(fit["batch_size"], fit["saved"], color=look.colour, zorder=3)
    style.points(axes, points, "batch_size", "saved", look)
    axes.legend(handles=[style.handle("", look)], labels=[str(table["label"].iloc[0])], frameon=False,
                fontsize=style.SMALL, loc="lower right")  # fmt: skip
