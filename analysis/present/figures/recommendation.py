"""Time and cost to the target against batch size, with the recommended one and those that are nearly as good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.phrases import plural, time_unit
from analysis.present import style
from analysis.present.figures import FigureKind
from analysis.questions.recommendation import course

if TYPE_CHECKING:
    from analysis.questions.recommendation.plans import Plan
    from analysis.questions.recommendation.result import Recommendation
    from analysis.read.throughput import Throughput

_COLUMNS = ["panel", "objective", "optimizer", "kind", "devices", "batch_size", "value", "low", "high", "unit"]
_ABOUT = ["near_low", "near_high", "confidence", "example_unit", "tokens_per_example", "statement"]
_SHOWN = ("time", "cost")


def compute(recommendations: Sequence[Recommendation], throughput: Throughput) -> pd.DataFrame:
    """Rows of two kinds per panel and optimizer, see column ``kind``: ``curve`` along the batch sizes that may be
    recommended, on the devices of the recommendation, with its interval; ``best`` at the recommendation, with the range
    of batch sizes within 5 % of it. A panel without any has one row with a ``statement``.

    ``value`` is in seconds in a panel of time; in a panel of cost in ``unit``.
    """
    rows: list[dict[str, Any]] = []
    for recommendation in recommendations:
        for objective in _SHOWN:
            prices = {plan.price for plan in _plans(recommendation, objective)}
            unit = "s" if objective == "time" else "device-hours" if prices <= {None} else "currency"
            panel = f"{recommendation.title}: least {objective}{'' if objective == 'time' else f' ({unit})'}"
            found = []
            for advice in recommendation.advice:
                plan = advice.plans.get(objective)
                if plan is not None:
                    group = advice.answer.group
                    about = {
                        "panel": panel,
                        "objective": objective,
                        "optimizer": advice.optimizer,
                        "devices": plan.devices,
                        "unit": unit,
                        "confidence": advice.answer.confidence,
                        "example_unit": group.example_unit,
                        "tokens_per_example": group.tokens_per_example,
                    }
                    found += [about | row for row in _rows(advice.answer, throughput, plan)]
            nothing = "nothing can be recommended:\nno batch size has both a fit and a step time"
            rows += found or [{"panel": panel, "objective": objective, "statement": nothing}]
    return pd.DataFrame(rows, columns=[*_COLUMNS, *_ABOUT])


def _plans(recommendation: Recommendation, objective: str) -> list[Plan]:
    return [advice.plans[objective] for advice in recommendation.advice if objective in advice.plans]


def _rows(answer: Any, throughput: Throughput, plan: Plan) -> list[dict[str, Any]]:
    entry = course(answer.fit, throughput, answer.group.optimizer, plan.devices)
    assert entry is not None
    each = entry.seconds
    if plan.objective == "cost":
        each = each * plan.devices / 3600 * (1.0 if plan.price is None else plan.price)
    low = high = np.full(len(each), np.nan)
    if len(entry.resampled):
        tail = 0.5 - answer.confidence / 2
        low, high = np.quantile(entry.resampled, [tail, 1 - tail], axis=0) * each
    table = {"batch_size": entry.batch_sizes, "value": entry.steps * each, "low": low, "high": high}
    curve = [{"kind": "curve"} | row for row in pd.DataFrame(table).to_dict("records")]
    at = int(np.flatnonzero(entry.batch_sizes == plan.batch_size)[0])
    best = dict(curve[at]) | {"kind": "best", "near_low": plan.near[0], "near_high": plan.near[1]}
    return [*curve, best]


def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Log-log; a star at the recommended batch size, a thick line over the batch sizes within 5 % of it."""
    drawn = table[table["statement"].isna()]
    if drawn.empty:
        style.empty(axes, table["statement"].iloc[0])
        return
    unit, length = drawn["unit"].iloc[0], 1.0
    if unit == "s":
        unit, length = time_unit(drawn["value"])
    drawn = drawn.assign(**{name: drawn[name].astype(float) / length for name in ("value", "low", "high")})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*style.log_limits(drawn["batch_size"]))
    axes.set_ylim(*style.log_limits(drawn[["value", "low", "high"]].to_numpy().ravel()))
    looks = style.looks(drawn["optimizer"])
    key = [_draw_optimizer(axes, drawn[drawn["optimizer"] == name], name, looks[name][0]) for name in looks]
    style.key(axes, key, drawn["batch_size"], drawn[["value", "high"]].max(axis=1), title="thick: within 5 % of ★")
    style.log_axis(axes.xaxis)
    style.log_axis(axes.yaxis)
    style.token_axis(axes, drawn["tokens_per_example"])
    axes.set_xlabel(f"batch size ({drawn['example_unit'].iloc[0]}s)")
    axes.set_ylabel(f"{'time' if drawn['objective'].iloc[0] == 'time' else 'cost'} to target ({unit})")


def _draw_optimizer(axes: Axes, part: pd.DataFrame, name: str, colour: str) -> Line2D:
    curve, best = part[part["kind"] == "curve"], part[part["kind"] == "best"].iloc[0]
    axes.plot(curve["batch_size"], curve["value"], color=colour, zorder=3)
    if curve["low"].notna().all():
        axes.fill_between(curve["batch_size"], curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0)
    near = curve[curve["batch_size"].between(best["near_low"], best["near_high"])]
    axes.plot(near["batch_size"], near["value"], color=colour, linewidth=3.5, solid_capstyle="butt", zorder=3)
    axes.plot(
        best["batch_size"], best["value"], "*", color=colour, markersize=12, markeredgecolor="white", clip_on=False,
        zorder=5,
    )  # fmt: skip
    label = f"{name}, {plural(int(best['devices']), 'device')}, B={best['batch_size']:g}"
    return axes.plot([], [], color=colour, label=label)[0]


RECOMMENDATION = FigureKind(compute, draw, panels=True, by="panel", columns=2)
