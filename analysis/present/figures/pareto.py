"""The trade-off of steps against examples: what a larger batch buys and what it costs.

McCandlish et al. (2018), figure 1 and equation 2.11.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.present import style
from analysis.present.figures import FIGURES, FigureKind

if TYPE_CHECKING:
    from analysis.estimate.result import Answer

_RESOLUTION = 120
_BEYOND = 3.0
"""The curve is drawn this factor beyond the measured batch sizes."""

_MOST_LABELLED = 4
"""Optimizers whose batch sizes are all labelled."""

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
        if answer.fit is not None and answer.min_steps is not None and answer.examples_at_critical is not None:
            critical = float(answer.fit.estimate.critical)
            ends = min(critical, reached[0].batch_size) / _BEYOND, max(critical, reached[-1].batch_size) * _BEYOND
            grid = np.geomspace(*ends, _RESOLUTION)
            steps = np.exp(answer.fit.estimate.log_steps(grid))
            rows += [("fit", *row) for row in zip(grid, steps, steps * grid, strict=True)]
            rows.append(("critical", critical, 2 * answer.min_steps, answer.examples_at_critical))
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
    names, dashes = style.looks(table["optimizer"]), style.dashes(table["optimizer"])
    key = [
        _draw_optimizer(axes, table[table["optimizer"] == name], name, *look, dashes[name])
        for name, look in names.items()
        if (shown["optimizer"] == name).any()
    ]
    style.key(axes, key, shown["steps"], shown["examples"])
    _label_batch_sizes(axes, table, {name: colour for name, (colour, _) in names.items()})
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis)
    style.token_axis(axes, table["tokens_per_example"], axis="y", quantity="data")
    style.axis_label(axes, "x", f"steps to {style.words(table['target'].iloc[0])}")
    axes.set_ylabel(f"data ({table['example_unit'].iloc[0]}s)")


def _draw_optimizer(axes: Axes, part: pd.DataFrame, name: str, colour: str, marker: str, dashes: Any) -> Line2D:
    points, fit, critical = (part[part["kind"] == kind] for kind in ("point", "fit", "critical"))
    axes.plot(fit["steps"], fit["examples"], color=colour, linestyle=dashes, zorder=2)
    axes.plot(points["steps"], points["examples"], marker, color=colour, zorder=3)
    axes.plot(
        critical["steps"], critical["examples"], "*", color=colour, markersize=11, markeredgecolor="white", zorder=4
    )
    line = dashes if len(fit) else ""
    return axes.plot([], [], marker=marker, linestyle=line, color=colour, label=style.literal(name))[0]


def _label_batch_sizes(axes: Axes, table: pd.DataFrame, colours: dict[str, str]) -> None:
    """The smallest and the largest batch size of every optimizer, each in the corner of its point that covers no other
    point and least of the curves; none where every corner covers one. Of many optimizers, every batch size once."""
    inches = np.array(style.size(axes)) - (0.45, 0.0)  # of the axis in tokens

    def place(rows: pd.DataFrame) -> np.ndarray:
        pixels = axes.transData.transform(rows[["steps", "examples"]].to_numpy(dtype=float))
        return axes.transAxes.inverted().transform(pixels) * inches

    marks, curves = place(table[table["kind"] != "fit"]), place(table[table["kind"] == "fit"])
    height, gap = (style.SMALL - 1) / 72, 0.06
    taken: list[tuple[np.ndarray, np.ndarray]] = []
    written: set[str] = set()
    for name, part in table[table["kind"] == "point"].groupby("optimizer", sort=False):
        for _, row in part.iloc[[0, -1] if len(part) > 1 else [0]].iterrows():
            text = f"B={row['batch_size']:g}"
            if len(colours) > _MOST_LABELLED and text in written:
                continue
            box = np.array([style.width(text, style.SMALL - 1), height])
            at = place(row.to_frame().T)[0]
            found: list[tuple[int, int, tuple[int, int], np.ndarray]] = []
            for corner in ((1, 1), (-1, 1), (1, -1), (-1, -1)):
                low = at + np.array(corner) * gap + np.minimum(corner, 0) * box
                covered = any((low < end).all() and (start < low + box).all() for start, end in taken)
                covered |= _inside(marks, low - 0.045, low + box + 0.045) > 0
                if not covered and (low > 0).all() and (low + box < inches).all():
                    found.append((_inside(curves, low, low + box), len(found), corner, low))
            if not found:
                continue
            _, _, corner, low = min(found, key=lambda entry: entry[:2])
            taken.append((low, low + box))
            written.add(text)
            axes.annotate(
                text,
                (row["steps"], row["examples"]),
                tuple(72 * gap * np.array(corner)),
                textcoords="offset points",
                ha="left" if corner[0] > 0 else "right",
                va="bottom" if corner[1] > 0 else "top",
                zorder=5,
                fontsize=style.SMALL - 1,
                color=style.ink(colours[str(name)]),
                path_effects=style.halo(),
            )


def _inside(points: np.ndarray, low: np.ndarray, high: np.ndarray) -> int:
    """How many points lie in a box."""
    return int(((points > low) & (points < high)).all(axis=1).sum())


def caption(table: pd.DataFrame) -> str:
    """What is seen, in words."""
    return (
        f"Data to {style.words(table['target'].iloc[0])} in {table['example_unit'].iloc[0]}s against the "
        "optimizer steps to it, each batch size at its best learning rate; both axes are logarithmic. Small "
        "batches B are at the lower right, large ones at the upper left. Lines are the fitted curve (S/S_min - "
        "1)(E/E_min - 1) = 1; a star is its point at E_min / S_min, which takes twice the fewest steps and twice "
        f"the fewest {table['example_unit'].iloc[0]}s."
    )


FIGURES.register("pareto")(FigureKind(compute, draw, title="Data against steps", caption=caption))
