"""Losses of branches against batch size, and the local critical batch size along the run."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.formatting import number
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.style import standing_marks, standing_points
from extensions.branching.local_batch_sizes import LocalBatchSizes, LocalCurve, LocalScope
from extensions.branching.tables import rows

_SHOWN = 6.0  # Largest excess that is shown, as a multiple of the tolerance; larger ones are worse in any case


def _about(result: LocalBatchSizes, curve: LocalCurve, scope: LocalScope) -> dict[str, Any]:
    names = ("workload", "example_unit", "tokens_per_example", "metric_unit", "tolerance")
    about = {name: getattr(scope, name) for name in names}
    return about | {"confidence": result.config.confidence, "optimizer": curve.optimizer}


def compute_losses(result: LocalBatchSizes) -> pd.DataFrame:
    """Return a row per branch that can be compared and a row per k*; the column ``kind`` distinguishes them."""
    table: list[dict[str, Any]] = []
    for each, curve, scope in rows(result):
        where = f"{number(each.examples)} {scope.example_unit}s"
        about = _about(result, curve, scope)
        about["panel"] = f"{scope.workload}, {where}" if len(result.scopes) > 1 else where
        for at in each.factors:
            if at.excess.value is not None:
                low, high = at.excess.interval
                table.append(about | {
                    "kind": "branch", "batch_size": at.batch_size, "excess": at.excess.value, "low": low,
                    "high": high, "standing": at.standing, "base": each.batch_size,
                })  # fmt: skip
        if each.critical_batch_size.value is not None:
            low, high = each.critical_batch_size.interval
            table.append(about | {"kind": "critical", "batch_size": each.critical_batch_size.value, "low": low,
                                  "high": high, "excess": scope.tolerance})  # fmt: skip
    return tidy(table, ["panel", "optimizer", "kind", "batch_size", "excess", "low", "high"])


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return the legend of the markers that occur and of the lines."""
    shown = standing_marks(table, ("within the tolerance", "worse", "cannot be told"))
    return [*shown, style.mark("tolerance", linestyle="--"), style.mark("local critical batch size", linestyle=":")]


@figure(
    "local_losses", of=LocalBatchSizes, compute=compute_losses, panel="panel", marks=marks,
    title="Loss of branches against batch size",
    caption="Loss at the end of every branch above that of the best one, with {percent} intervals, at every "
    "checkpoint; the local critical batch size is where the curve passes the tolerance.",
)  # fmt: skip
def draw_losses(axes: Axes, table: pd.DataFrame) -> None:
    """Draw excesses joined by lines, the tolerance as a horizontal line, k* as a vertical one with its interval."""
    own = table[table["kind"] == "branch"]
    tolerance = float(table["tolerance"].iloc[0])
    unit = f" ({table['metric_unit'].iloc[0]})" if table["metric_unit"].iloc[0] else ""
    label = f"loss above the best batch size{unit}"
    style.batch_axes(axes, own, own["excess"].abs() + tolerance, label, own["batch_size"])
    axes.set_yscale("linear")
    most = float(np.clip(own["excess"].max(), 1.5 * tolerance, _SHOWN * tolerance))
    axes.set_ylim(-0.12 * most, 1.2 * most)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    axes.axhline(tolerance, color=style.GREY, linestyle="--", linewidth=0.8, zorder=1)
    key = []
    for name, look, (branches, critical) in style.each(table, "branch", "critical"):
        standing_points(axes, branches, "excess", look)
        for row in critical.itertuples():
            axes.plot([row.batch_size] * 2, [axes.get_ylim()[0], tolerance], ":", color=look.colour, linewidth=1.0)
            if np.isfinite([row.low, row.high]).all():
                axes.axvspan(row.low, row.high, color=look.colour, alpha=0.12, linewidth=0, zorder=0)
        key.append(style.handle(name, look))
    axes.legend(handles=key, loc="upper left", frameon=False, fontsize=style.SMALL)


def compute_curve(result: LocalBatchSizes) -> pd.DataFrame:
    """One row per optimizer, checkpoint and kind, with its interval: ``local``, ``published``, and the noise
    ``scale`` in the geometry of the optimizer."""
    table: list[dict[str, Any]] = []
    for each, curve, scope in rows(result):
        if not each.examples:
            continue  # no place on a logarithmic axis
        matched = each.matched_geometry not in ("", "l2")
        scale = each.matched_noise_scale if matched else each.noise_scale
        about = _about(result, curve, scope)
        about["panel"] = f"{scope.workload}, {curve.optimizer}" if len(result.scopes) > 1 else curve.optimizer
        for kind, found_here in {
            "local": each.critical_batch_size,
            "published": each.published,
            "scale": scale,
        }.items():
            if found_here.value is not None:
                low, high = found_here.interval
                table.append(about | {
                    "kind": kind, "examples": each.examples, "critical_batch_size": found_here.value, "low": low,
                    "high": high, "loss": each.loss,
                })  # fmt: skip
    return tidy(table, ["panel", "optimizer", "kind", "examples", "critical_batch_size", "low", "high"])


_KINDS = {"local": "local critical batch size", "published": "published rule", "scale": "noise scale"}


def curve_marks(table: pd.DataFrame) -> list[Line2D]:
    """Return the key of what is shown."""
    looks, shown = style.looks(_KINDS), set(table["kind"])
    keys = {kind: style.handle(words, looks[kind]) for kind, words in _KINDS.items()}
    keys["published"] = style.mark(_KINDS["published"], linestyle="", marker="_", markersize=7)
    keys["scale"] = style.mark(_KINDS["scale"], color=looks["scale"].colour, linestyle="-.", linewidth=1.2)
    return [key for kind, key in keys.items() if kind in shown]


def curve_frame(axes: Axes, table: pd.DataFrame) -> None:
    """Set the same axes for all optimizers."""
    values = style.near(table["critical_batch_size"], table[["low", "high"]], 4)
    unit = table["example_unit"].iloc[0]
    style.log_axes(axes, table["examples"], values, f"{unit}s seen", f"batch size ({unit}s)", ticks=table["examples"])


@figure(
    "local_curve", of=LocalBatchSizes, compute=compute_curve, panel="panel", frame=curve_frame, marks=curve_marks,
    title="Local critical batch size along the run",
    caption="From branches of its checkpoints, with {percent} intervals; beside it the published rule, and the noise "
    "scale of the branches in the geometry of the optimizer, with its {percent} interval as a band.",
)  # fmt: skip
def draw_curve(axes: Axes, table: pd.DataFrame) -> None:
    """Draw local critical batch sizes with intervals, the published rule as bars, the noise scale as a line in a
    band."""
    looks = style.looks(_KINDS)
    own = dict(iter(table.groupby("kind")))
    if (scale := own.get("scale")) is not None:
        style.band(axes, scale, "examples", looks["scale"].colour)
        axes.plot(scale["examples"], scale["critical_batch_size"], "-.", color=looks["scale"].colour, linewidth=1.2)
    if (published := own.get("published")) is not None:
        axes.plot(published["examples"], published["critical_batch_size"], "_", color=style.GREY, markersize=7)
    if (local := own.get("local")) is not None:
        axes.plot(local["examples"], local["critical_batch_size"], color=looks["local"].colour)
        style.points(axes, local, "examples", "critical_batch_size", looks["local"])
