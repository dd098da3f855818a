"""Time and cost to the target against batch size, with the recommended one and those that are nearly as good,
and the factors of the time: steps, time of a step and utilisation.

The time to a target is steps times seconds per step; a step of B examples at utilisation U of the fastest rate R takes
B / (U R) seconds.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.estimate.result import Answer
from analysis.estimate.time_curves import course
from analysis.formatting import plural, time_unit
from analysis.present import style
from analysis.present.figures import along, figure, tidy
from analysis.present.figures.of_answers import about
from analysis.quantities import percentiles
from analysis.read.throughput import Throughput
from extensions.recommending.plans import Plan, Recommendations

_COLUMNS = ["panel", "objective", "optimizer", "kind", "devices", "batch_size", "value", "low", "high", "unit"]
_FACTORS = ["panel", "optimizer", "devices", "kind", "batch_size", "steps", "step_time", "time", "utilisation"]
_LINES = {"time": ("time", "-"), "steps": ("steps", "--"), "step_time": ("time of a step", ":"),
          "utilisation": ("utilisation", "-.")}  # fmt: skip
_STAR: dict[str, Any] = {"markersize": 11, "markeredgecolor": "white"}
_NEAR: dict[str, Any] = {"linewidth": 5, "alpha": 0.45}


def compute(recommendations: Recommendations) -> pd.DataFrame:
    """Return rows of three kinds per panel and optimizer (column ``kind``).

    ``curve``: along the batch sizes that may be recommended, on the devices of the recommendation, with its interval;
    ``point``: at every measured batch size with the range over seeds; ``best``: at the recommendation, with the range
    of batch sizes within 5 % of it. ``value`` is in seconds in a panel of time, and in ``unit`` in a panel of cost.
    """
    rows = []
    for recommendation in recommendations.recommendations:
        for objective in ("time", "cost"):
            plans = [(advice, advice.plans[objective]) for advice in recommendation.advice if advice.plans]
            of_cost = "currency" if any(plan.price for _, plan in plans) else "device-hours"
            counts = {plan.devices for _, plan in plans}
            devices = f" on {plural(max(counts), 'device')}" if len(counts) == 1 else ""
            panel = f"{recommendation.title}: least {objective}{devices}"
            for advice, plan in plans:
                own = {"panel": panel, "objective": objective, "devices": plan.devices}
                own["unit"] = "s" if objective == "time" else of_cost
                own |= about(advice.answer)
                rows += [own | row for row in _rows(advice.answer, recommendations.throughput, plan)]
    return tidy(rows, _COLUMNS)


def _rows(answer: Answer, step_times: Throughput, plan: Plan) -> Iterator[dict[str, Any]]:
    entry = course(answer, step_times, plan.devices)
    assert entry is not None
    price = 1.0 if plan.objective == "time" else plan.devices / 3600 * (1.0 if plan.price is None else plan.price)
    near = dict(zip(("near_low", "near_high"), plan.within_5_percent, strict=True))
    curve = price * entry.seconds * np.stack([entry.steps, *percentiles(entry.drawn, answer.confidence)])
    for row in along("curve", batch_size=entry.batch_sizes, value=curve[0], low=curve[1], high=curve[2]):
        yield row
        if row["batch_size"] == plan.batch_size:
            yield row | {"kind": "best"} | near
    for point in answer.points:
        if point.reached and entry.batch_sizes[0] <= point.batch_size <= entry.batch_sizes[-1]:
            seconds = step_times.seconds_per_step(plan.optimizer, np.array([point.batch_size]), plan.devices)[0]
            steps = (point.steps_to_target, min(point.steps_per_seed), max(point.steps_per_seed))
            values = dict(zip(("value", "low", "high"), (price * seconds * step for step in steps), strict=True))
            yield {"kind": "point", "batch_size": point.batch_size} | values


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of everything except the optimizers, which are named at their lines."""
    shown: dict[str, dict[str, Any]] = {
        "recommended batch size B": {"marker": "*", "linestyle": "", **_STAR},
        "at most 5 % more than that": _NEAR,
        "measured steps, range over seeds": {"marker": "o", "linestyle": ""},
        f"expected curve and its {style.percent(table)}": {"linewidth": 1.2},
    }
    return [style.mark(label, **look) for label, look in shown.items()]


@figure("recommendation", of=Recommendations, compute=compute, panel="panel", columns=2, marks=marks)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a star at the recommended batch size, a thick line within 5 % of it, and the name of every line at its
    end."""
    unit, length = table["unit"].iloc[0], 1.0
    if unit == "s":
        unit, length = time_unit(table["value"])
    table = table.assign(**{name: table[name].astype(float) / length for name in ("value", "low", "high")})
    style.batch_axes(axes, table, table[["value", "low", "high"]], f"{table['objective'].iloc[0]} to target ({unit})")
    ends = []
    for name, look, (curve, points, best) in style.each(table, "curve", "point", "best"):
        style.curve(axes, curve, "batch_size", "value", look)
        style.points(axes, points, "batch_size", "value", look)
        star, last = best.iloc[0], curve.iloc[-1]
        near = curve[curve["batch_size"].between(star["near_low"], star["near_high"])]
        axes.plot(near["batch_size"], near["value"], color=look.colour, solid_capstyle="butt", zorder=2, **_NEAR)
        axes.plot(star["batch_size"], star["value"], "*", color=look.colour, clip_on=False, zorder=5, **_STAR)
        devices = f", {plural(int(star['devices']), 'device')}" if table["devices"].nunique() > 1 else ""
        text = f"{name}: B={star['batch_size']:g}{devices}"
        ends.append((last["batch_size"], last["value"], style.literal(text), look.colour))
    style.label_ends(axes, ends)


def compute_factors(result: Recommendations) -> pd.DataFrame:
    """Return rows along the batch sizes of the plan of least time, one panel per optimizer.

    ``steps`` and ``step_time`` are over their smallest values, so that ``time`` is their product; ``utilisation`` is
    examples per second over the largest of the panel.
    """
    rows = []
    for recommendation in result.recommendations:
        for advice in recommendation.advice:
            plan = advice.plans.get("time")
            entry = course(advice.answer, result.throughput, plan.devices) if plan else None
            if plan is None or entry is None or len(entry.batch_sizes) < 2:
                continue
            steps, seconds = entry.steps / entry.steps.min(), entry.seconds / entry.seconds.min()
            rate = entry.batch_sizes / entry.seconds
            lines = {"steps": steps, "step_time": seconds, "time": steps * seconds, "utilisation": rate / rate.max()}
            panel = f"{recommendation.title}: {advice.optimizer} on {plural(plan.devices, 'device')}"
            own = about(advice.answer) | {"panel": panel, "devices": plan.devices}
            rows += [own | row for row in along("curve", batch_size=entry.batch_sizes, **lines)]
    return tidy(rows, _FACTORS)


@figure("time_factors", of=Recommendations, compute=compute_factors, panel="panel", columns=2)
def draw_factors(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the factors and their product on one log axis, each named at its end, with a star at the least time."""
    style.batch_axes(axes, table, table[list(_LINES)], "over the smallest, or share of the fastest")
    looks = style.looks(_LINES)
    ends = []
    for name, (words, dashes) in _LINES.items():
        colour, last = looks[name].colour, table.iloc[-1]
        axes.plot(
            table["batch_size"], table[name], color=colour, linestyle=dashes, linewidth=1.8 if name == "time" else 1.1
        )
        ends.append((last["batch_size"], last[name], words, colour))
    best = table.loc[table["time"].idxmin()]
    axes.plot(best["batch_size"], best["time"], "*", color=looks["time"].colour, markersize=10, markeredgecolor="white")
    style.label_ends(axes, ends)
