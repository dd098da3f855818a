"""Losses of branches against batch size, and the local critical batch size along the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.formatting import number
from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.style import standing_marks, standing_points
from analysis.questions.local.answer import LocalBatchSizes, LocalCurve, LocalScope
from analysis.questions.local.tables import rows

_SHOWN = 6.0
"""Largest excess that is shown, as a multiple of the tolerance; larger ones are worse in any case."""


def _about(found: LocalBatchSizes, curve: LocalCurve, scope: LocalScope) -> dict[str, Any]:
    names = ("workload", "example_unit", "tokens_per_example", "metric_unit", "tolerance")
    about = {name: getattr(scope, name) for name in names}
    return about | {"confidence": found.config.confidence, "optimizer": curve.optimizer}


def compute_losses(found: LocalBatchSizes) -> pd.DataFrame:
    """Return a row per branch that can be compared and a row per k*; the column ``kind`` distinguishes them."""
    table: list[dict[str, Any]] = []
    for each, curve, scope in rows(found):
        where = f"{number(each.examples)} {scope.example_unit}s"
        about = _about(found, curve, scope)
        about["panel"] = f"{scope.workload}, {where}" if len(found.scopes) > 1 else where
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


def compute_curve(found: LocalBatchSizes) -> pd.DataFrame:
    """One row per optimizer, checkpoint and kind: ``local`` and ``published`` with their intervals, ``simple`` and
    ``matched`` noise scales."""
    table: list[dict[str, Any]] = []
    for each, curve, scope in rows(found):
        if not each.examples:
            continue  # no place on a logarithmic axis
        kinds = {"local": each.critical_batch_size, "published": each.published, "simple": each.noise_scale}
        if each.matched_geometry not in ("", "l2"):
            kinds["matched"] = each.matched_noise_scale
        for kind, found_here in kinds.items():
            if found_here.value is not None:
                low, high = found_here.interval
                table.append(_about(found, curve, scope) | {
                    "kind": kind, "examples": each.examples, "critical_batch_size": found_here.value, "low": low,
                    "high": high, "loss": each.loss,
                })  # fmt: skip
    return tidy(table, ["workload", "optimizer", "kind", "examples", "critical_batch_size", "low", "high"])


_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "published": ("published rule", {"linestyle": "", "marker": "_"}),
    "simple": ("noise scale, plain", {"linestyle": ":", "marker": ""}),
    "matched": ("noise scale, matched", {"linestyle": "-.", "marker": ""}),
}


def curve_marks(table: pd.DataFrame) -> list[Line2D]:
    """Return the legend of the quantities shown beside the local critical batch size."""
    return [style.mark(words, **look) for kind, (words, look) in _KINDS.items() if (table["kind"] == kind).any()]


@figure(
    "local_curve", of=LocalBatchSizes, compute=compute_curve, panel="workload", marks=curve_marks,
    title="Local critical batch size along the run",
    caption="From branches of its checkpoints, with {percent} intervals; beside it "
    "the published rule and the noise scales of the branches.",
)  # fmt: skip
def draw_curve(axes: Axes, table: pd.DataFrame) -> None:
    """Draw points with intervals joined by lines, several optimizers slightly apart; noise scales as thin lines."""
    unit = table["example_unit"].iloc[0]
    values = style.near(table["critical_batch_size"], table[["low", "high"]], 4)
    style.log_axes(axes, table["examples"], values, f"{unit}s seen", f"critical batch size ({unit}s)")
    style.token_axis(axes, table["tokens_per_example"], quantity="data seen")
    key, middle = [], (table["optimizer"].nunique() - 1) / 2
    for index, (name, look, (local, *beside)) in enumerate(style.each(table, "local", *_KINDS)):
        aside = 1.04 ** (index - middle)
        axes.plot(local["examples"] * aside, local["critical_batch_size"], color=look.colour, linestyle=look.dashes)
        style.points(axes, local, "examples", "critical_batch_size", look, aside=aside)
        for part, (_, marking) in zip(beside, _KINDS.values(), strict=True):
            shown: dict[str, Any] = {"linewidth": 0.8, "markersize": 7, "color": look.colour, "zorder": 2} | marking
            axes.plot(part["examples"] * aside, part["critical_batch_size"], **shown)
        key.append(style.handle(name, look))
    tops = table["high"].astype(float).combine_first(table["critical_batch_size"])
    style.key(axes, key, table["examples"], tops)
