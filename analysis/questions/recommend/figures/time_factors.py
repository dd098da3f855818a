"""Steps, time of a step and utilisation against batch size on one axis, with time to the target as their product.

The time to a target is steps times seconds per step; a step of B examples at utilisation U of the fastest rate R takes
B / (U R) seconds.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from analysis.estimate.time_curves import course
from analysis.phrases import plural
from analysis.present import style
from analysis.present.figures import about, along, figure, tidy
from analysis.questions.recommend.plans import Recommendations

_COLUMNS = ["panel", "optimizer", "devices", "kind", "batch_size", "steps", "step_time", "time", "utilisation"]
_LINES = {"time": ("time", "-"), "steps": ("steps", "--"), "step_time": ("time of a step", ":"),
          "utilisation": ("utilisation", "-.")}  # fmt: skip


def compute(found: Recommendations) -> pd.DataFrame:
    """Return rows along the batch sizes of the plan of least time, one panel per optimizer.

    ``steps`` and ``step_time`` are over their smallest values, so that ``time`` is their product; ``utilisation`` is
    examples per second over the largest of the panel.
    """
    rows = []
    for recommendation in found.recommendations:
        for advice in recommendation.advice:
            plan = advice.plans.get("time")
            entry = course(advice.answer, found.throughput, plan.devices) if plan else None
            if plan is None or entry is None or len(entry.batch_sizes) < 2:
                continue
            steps, seconds = entry.steps / entry.steps.min(), entry.seconds / entry.seconds.min()
            rate = entry.batch_sizes / entry.seconds
            lines = {"steps": steps, "step_time": seconds, "time": steps * seconds, "utilisation": rate / rate.max()}
            panel = f"{recommendation.title}: {advice.optimizer} on {plural(plan.devices, 'device')}"
            own = about(advice.answer) | {"panel": panel, "devices": plan.devices}
            rows += [own | row for row in along("curve", batch_size=entry.batch_sizes, **lines)]
    return tidy(rows, _COLUMNS)


@figure("time_factors", of=Recommendations, compute=compute, panel="panel", columns=2)
def draw(axes: Axes, table: pd.DataFrame) -> None:
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
