"""What doubling the batch size buys, from every batch size: steps saved, and examples added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.arrays import percentiles
from analysis.estimate.findings import Analysis
from analysis.estimate.result import Answer
from analysis.present import style
from analysis.present.figures import along, figure
from analysis.present.figures.of_answers import of_each

_RESOLUTION = 60
_COLUMNS = ["optimizer", "kind", "batch_size", "steps_saved", "low", "high", "examples_added"]

EVEN = 100 * (1 - 0.5**0.5)
"""Percent of the steps that doubling saves where steps times examples stay the same."""


def rows(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield rows of two kinds: ``point`` for every measured batch size whose double is not above the largest one, and
    ``fit`` between them.

    ``steps_saved`` is in percent, with its interval ``low`` to ``high``; ``examples_added``, in percent, follows from
    it.
    """
    found: list[dict[str, Any]] = []
    for entry in answer.doublings:
        saved = entry.steps_saved.times(100)
        ends = dict(zip(("low", "high"), saved.interval, strict=True))
        found.append({"kind": "point", "batch_size": entry.batch_size, "steps_saved": saved.value} | ends)
    if answer.draws is not None and len(answer.doublings) > 1:
        sizes = np.geomspace(answer.doublings[0].batch_size, answer.doublings[-1].batch_size, _RESOLUTION)
        rise = answer.draws.drawn(2 * sizes) - answer.draws.drawn(sizes)
        expected = answer.draws.estimate(2 * sizes) - answer.draws.estimate(sizes)
        high, low = -100 * np.expm1(percentiles(rise, answer.confidence))
        found += along("fit", batch_size=sizes, steps_saved=-100 * np.expm1(expected), low=low, high=high)
    yield from (row | {"examples_added": 100 - 2 * row["steps_saved"]} for row in found)


@figure(
    "doubling",
    of=Analysis,
    main=False,
    compute=of_each(rows, _COLUMNS),
    apart=True,
    title="What doubling the batch size buys",
    caption="Percent of the optimizer steps to {target} that twice the batch size saves, against the batch size in "
    "{example_unit}s, with {percent} intervals; 50 % is perfect scaling. Saving p % adds 100 - 2p % of the "
    "examples. On the grey line steps x examples stay the same: above it, doubling saves more time than it costs data.",
)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a curve with its band and marks for every optimizer, and the line of an even exchange."""
    own = table[table["kind"] != "beyond"]
    sizes = sorted(set(own.loc[own["kind"] == "point", "batch_size"]))
    style.log_scale(axes, "x", sizes, sizes, most=style.most_ticks(axes))
    style.axis_label(axes, "x", f"batch size to double ({table['example_unit'].iloc[0]}s)")
    style.axis_label(axes, "y", f"steps saved to {style.words(table['target'].iloc[0])} (%)")
    axes.axhline(EVEN, color=style.GREY, linewidth=0.8, linestyle=":", zorder=1)
    key = []
    for name, look, (points, fit) in style.each(table, "point", "fit"):
        axes.plot(fit["batch_size"], fit["steps_saved"], color=look.colour, linestyle=look.dashes, zorder=3)
        style.band(axes, fit, "batch_size", look.colour)
        axes.plot(points["batch_size"], points["steps_saved"], look.marker, color=look.colour, zorder=4)
        key.append(style.handle(name, look))
    axes.set_ylim(min(0.0, float(own["steps_saved"].min())), max(55.0, float(own["steps_saved"].max())))
    if not style.behind(axes, table, "batch_size", "steps_saved"):
        turned: Any = (lambda saved: 100 - 2 * saved, lambda added: (100 - added) / 2)
        axes.secondary_yaxis("right", functions=turned).set_ylabel(f"{table['example_unit'].iloc[0]}s added (%)")
        style.key(axes, key, own["batch_size"], own["steps_saved"])
