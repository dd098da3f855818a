"""Figures of the final metric at equal budgets: against batch size, over learning rates, and the width of the basin."""

from collections.abc import Iterator
from typing import Any, cast

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from analysis.formatting import number
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.style import standing_marks, standing_points
from extensions.budget.equal_budgets import Budgets, OptimizerAtBudget, SizeAtBudget

_FEWEST_TICKS = 4  # Batch sizes named on a narrow panel

_DEEPEST = 8.0  # Multiple of the margin above the best at which a heat map is darkest; worse values look the same


def _sizes(result: Budgets) -> Iterator[tuple[dict[str, Any], OptimizerAtBudget, SizeAtBudget]]:
    """Yield every batch size with the columns that say where it belongs."""
    several = len({each.workload for each in result.budgets}) > 1
    for scope in result.budgets:
        for entry in scope.optimizers:
            for size in entry.sizes:
                yield (
                    {
                        "panel": f"{scope.workload}, {scope.title}" if several else scope.title,
                        "example_unit": scope.example_unit,
                        "tokens_per_example": scope.tokens_per_example,
                        "label": style.words(scope.metric) + (f" ({scope.metric_unit})" if scope.metric_unit else ""),
                        "margin": scope.margin,
                        "sign": 1.0 if scope.direction == "below" else -1.0,
                        "confidence": result.config.confidence,
                        "optimizer": entry.optimizer,
                        "kind": "point",
                        "batch_size": size.batch_size,
                    },
                    entry,
                    size,
                )


def compute(result: Budgets) -> pd.DataFrame:
    """Return one row per batch size with the metric, its interval, and the standing of the batch size."""
    rows = [
        about
        | dict(zip(("value", "low", "high"), (size.metric.value, *size.metric.interval), strict=True))
        | {"standing": str(size.excess.standing), "edge": size.at_grid_edge, "best": entry.equivalence.best.value}
        for about, entry, size in _sizes(result)
    ]
    return tidy(rows, ["panel", "optimizer", "kind", "batch_size", "value", "low", "high"])


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of the standings that occur, and of the band."""
    shown = standing_marks(table, ("within the margin of the best", "worse by more", "cannot be told"))
    margin = ", ".join(dict.fromkeys(number(value) for value in table["margin"]))
    return [*shown, style.mark(f"margin: {margin} from each best", linestyle="-", linewidth=6, alpha=0.2)]


@figure("budget_losses", of=Budgets, compute=compute, panel="panel", marks=marks)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw points joined by lines, and a band from the best to the margin; points of several optimizers are offset."""
    sizes, sign = table["batch_size"], float(table["sign"].iloc[0])
    style.batch_axes(axes, table, table["value"].abs(), str(table["label"].iloc[0]), sizes)
    axes.set_yscale("linear")
    values = table[["value", "low", "high"]].to_numpy(float)
    least, most = float(np.nanmin(table["value"])), float(np.nanmax(table["value"]))
    bars = (table["high"] - table["low"]).dropna().astype(float).median()
    room = max(most - least, 2 * float(table["margin"].iloc[0]), 0.0 if np.isnan(bars) else bars)
    values = values[np.isfinite(values) & (values > least - room) & (values < most + room)]
    low, high = float(values.min()), float(values.max())
    axes.set_ylim(low - 0.06 * (high - low), high + 0.3 * (high - low))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
    middle, key = (table["optimizer"].nunique() - 1) / 2, []
    beside, (left, right) = 1.05 ** (middle + 1), axes.get_xlim()  # the outermost optimizers stand inside, too
    axes.set_xlim(min(left, sizes.min() / beside), max(right, sizes.max() * beside))
    for index, (name, look, (curve,)) in enumerate(style.each(table, "point")):
        aside = 1.05 ** (index - middle)
        best = float(curve["value"].min() if sign > 0 else curve["value"].max())
        ends = sorted((best, best + sign * float(curve["margin"].iloc[0])))
        axes.axhspan(*ends, color=look.colour, alpha=0.12, linewidth=0, zorder=0)
        style.points(axes, curve.assign(value=np.nan), "batch_size", "value", look, aside=aside)
        standing_points(axes, curve, "value", look, aside=aside)
        key.append(style.handle(name, look))
    columns = min(len(key), 2)
    longest = max(style.width(str(handle.get_label()), style.SMALL) for handle in key)
    if columns * (longest + 0.5) > style.size(axes)[0]:
        style.below(cast(Figure, axes.figure), key)
    else:
        axes.legend(handles=key, loc="upper center", frameon=False, fontsize=style.SMALL, ncols=columns)


def compute_heat(result: Budgets) -> pd.DataFrame:
    """Return one row per batch size and learning rate with the difference of the metric from the best of all."""
    rows = []
    for about, entry, size in _sizes(result):
        del about["kind"]
        rates = {lr for each in entry.sizes for lr, _ in each.grid}
        if len(rates) > 1 and np.isfinite(list(rates)).all():
            least = float(np.nanmin([about["sign"] * value for each in entry.sizes for _, value in each.grid]))
            title = entry.optimizer if len(result.budgets) == 1 else f"{entry.optimizer}, {about['panel']}"
            for lr, value in size.grid:
                cell = {"panel": title, "lr": lr, "value": value, "best": lr == size.best_lr}
                rows.append(about | cell | {"worse": about["sign"] * value - least})
    return tidy(rows, ["panel", "optimizer", "batch_size", "lr", "value", "worse", "best"])


@figure("budget_heat", of=Budgets, compute=compute_heat, panel="panel", main=False)
def draw_heat(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a cell per learning rate, lighter if the loss is nearer to the best of all, with the best of every size
    boxed, crossed out if a run diverged, and white if none was run."""
    sizes = np.sort(table["batch_size"].unique())
    rates = np.sort(table["lr"].unique())
    margin = float(table["margin"].iloc[0])
    colours, scale = matplotlib.colormaps["viridis_r"], Normalize(0.0, _DEEPEST * margin)
    step = float(np.min(np.diff(np.log(rates)))) if len(rates) > 1 else np.log(2)
    height = min(max(step, 0.6 * float(np.median(np.diff(np.log(rates))))), np.log(2))
    for row in table.itertuples():
        at, up = int(np.searchsorted(sizes, row.batch_size)), np.log(row.lr)
        corner = (at - 0.5, up - height / 2)
        if np.isfinite(row.worse):
            axes.add_patch(Rectangle(corner, 1.0, height, color=colours(scale(row.worse)), linewidth=0.3, zorder=1))
        else:
            axes.plot([at], [up], "x", color=style.GREY, markersize=3, zorder=2)
        if row.best:
            axes.add_patch(Rectangle(corner, 1.0, height, fill=False, edgecolor=style.ALERT, linewidth=1.2, zorder=3))
    axes.set_xlim(-0.6, len(sizes) - 0.4)
    axes.set_ylim(np.log(rates[0]) - height, np.log(rates[-1]) + height)
    every = -(-len(sizes) // max(style.most_ticks(axes), _FEWEST_TICKS))
    axes.set_xticks(range(0, len(sizes), every), [style.plain(size) for size in sizes[::every]])
    shown = style.apart(axes, "y", rates.tolist(), float(np.ptp(axes.get_ylim())), most=7)
    axes.set_yticks(np.log(shown), [style.plain(rate) for rate in shown])
    style.axis_label(axes, "x", f"batch size ({table['example_unit'].iloc[0]}s)")
    style.axis_label(axes, "y", "learning rate")
    bar = axes.figure.colorbar(ScalarMappable(scale, colours), ax=axes, extend="max", pad=0.02, aspect=25)
    unit = str(table["label"].iloc[0]).rpartition("(")[2].removesuffix(")")
    bar.set_label(f"above the best ({unit})", fontsize=style.SMALL)
    bar.ax.tick_params(labelsize=style.SMALL)


def compute_basin(result: Budgets) -> pd.DataFrame:
    """Return one row per batch size whose basin of learning rates ends inside the grid on both sides."""
    rows = [about | {"basin_width": size.basin} for about, _, size in _sizes(result) if size.basin is not None]
    return tidy(rows, ["panel", "optimizer", "kind", "batch_size", "basin_width"])


@figure("budget_basin", of=Budgets, compute=compute_basin, panel="panel", main=False)
def draw_basin(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the ratio of the learning rates that do as well as the best of the batch size, within the margin."""
    label = f"learning rates within {number(float(table['margin'].iloc[0]))} of the best, highest / lowest"
    style.batch_axes(axes, table, [*table["basin_width"], 1.0], label, table["batch_size"])
    key = []
    for name, look, (curve,) in style.each(table, "point"):
        axes.plot(
            curve["batch_size"], curve["basin_width"], color=look.colour, linestyle=look.dashes, marker=look.marker
        )
        key.append(style.handle(name, look))
    style.key(axes, key, table["batch_size"], table["basin_width"])
