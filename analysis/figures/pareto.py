"""The trade-off of steps against examples: what a larger batch buys and what it costs.

McCandlish et al. (2018), figure 1 and equation 2.11.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis import style
from analysis.figures import FIGURES, FigureKind

if TYPE_CHECKING:
    from analysis.answers import Answer

_RESOLUTION = 120
_BEYOND = 3.0
"""The curve is drawn this factor beyond the measured batch sizes."""

_COLUMNS = ["optimizer", "kind", "batch_size", "steps", "examples", "example_unit", "tokens_per_example", "target"]


def compute(answers: Sequence[Answer]) -> pd.DataFrame:
    """Rows of three kinds, see column ``kind``: ``point`` per batch size, ``fit`` along the curve, ``critical`` at
    B_crit of the fit, which lies at twice the fewest steps and twice the fewest examples."""
    tables = []
    for answer in answers:
        reached = [point for point in answer.points if point.reached]
        rows: list[tuple[object, ...]] = [
            ("point", point.batch_size, point.steps_to_target, point.examples_to_target) for point in reached
        ]
        if answer.min_steps is not None and answer.min_examples is not None:
            critical = answer.min_examples / answer.min_steps
            ends = min(critical, reached[0].batch_size) / _BEYOND, max(critical, reached[-1].batch_size) * _BEYOND
            grid = np.geomspace(*ends, _RESOLUTION)
            steps = answer.min_steps + answer.min_examples / grid
            rows += [("fit", *row) for row in zip(grid, steps, steps * grid, strict=True)]
            rows.append(("critical", critical, 2 * answer.min_steps, 2 * answer.min_examples))
        tables.append(
            pd.DataFrame(rows, columns=_COLUMNS[1:5]).assign(
                optimizer=answer.group.optimizer,
                example_unit=answer.group.example_unit,
                tokens_per_example=answer.group.tokens_per_example,
                target=str(answer.target),
            )
        )
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True).reindex(
        columns=_COLUMNS
    )


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; small batches at the lower right, large ones at the upper left, a star at the critical batch size."""
    points = table[table["kind"] == "point"]
    if points.empty:
        style.empty(axes, "no batch size reached the target")
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    shown = table[table["kind"] != "fit"]
    axes.set_xlim(*style.log_limits(shown["steps"], above=0.14))
    axes.set_ylim(*style.log_limits(shown["examples"], above=0.1))
    names = style.looks(table["optimizer"])
    key = [_draw_optimizer(axes, table[table["optimizer"] == name], name, *look) for name, look in names.items()]
    style.key(axes, key, shown["steps"], shown["examples"])
    _label_batch_sizes(axes, points, {name: colour for name, (colour, _) in names.items()})
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis)
    style.token_axis(axes, table["tokens_per_example"], axis="y", quantity="data")
    axes.set_xlabel(f"steps to {style.words(table['target'].iloc[0])}")
    axes.set_ylabel(f"data ({table['example_unit'].iloc[0]}s)")


def _draw_optimizer(axes: Axes, part: pd.DataFrame, name: str, colour: str, marker: str) -> Line2D:
    points, fit, critical = (part[part["kind"] == kind] for kind in ("point", "fit", "critical"))
    axes.plot(fit["steps"], fit["examples"], color=colour, zorder=2)
    axes.plot(points["steps"], points["examples"], marker, color=colour, zorder=3)
    axes.plot(
        critical["steps"], critical["examples"], "*", color=colour, markersize=11, markeredgecolor="white", zorder=4
    )
    return axes.plot([], [], marker=marker, linestyle="-" if len(fit) else "", color=colour, label=name)[0]


def _label_batch_sizes(axes: Axes, points: pd.DataFrame, colours: dict[str, str]) -> None:
    """The smallest and the largest batch size of every optimizer; one label where two would cover each other."""
    taken: list[np.ndarray] = []
    for name, part in points.groupby("optimizer", sort=False):
        for _, row in part.iloc[[0, -1] if len(part) > 1 else [0]].iterrows():
            place = axes.transAxes.inverted().transform(axes.transData.transform((row["steps"], row["examples"])))
            if any((np.abs(place - other) < (0.16, 0.06)).all() for other in taken):
                continue
            taken.append(place)
            axes.annotate(
                f"B={row['batch_size']:g}",
                (row["steps"], row["examples"]),
                (4, 4),
                textcoords="offset points",
                zorder=5,
                fontsize=style.SMALL - 1,
                color=colours[str(name)],
                path_effects=style.halo(),
            )


FIGURES.register("pareto")(FigureKind(compute, draw))
