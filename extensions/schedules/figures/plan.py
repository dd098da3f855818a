"""Planned batch sizes compared with the critical batch size of every phase."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.present import style
from analysis.present.figures import figure, tidy
from extensions.schedules.plan.plans import SchedulePlan, SchedulePlans

_COLUMNS = ["panel", "kind", "first", "last", "value", "low", "high"]
_PLAN, _CRITICAL = "C0", style.GREY


def compute(plans: SchedulePlans) -> pd.DataFrame:
    """Return rows of two kinds (column ``kind``): ``stage`` with its batch size and ``phase`` with its critical batch
    size and interval, each from the examples ``first`` to ``last``."""
    return tidy([row for plan in plans.plans for row in _rows(plan)], _COLUMNS)


def _rows(plan: SchedulePlan) -> list[dict[str, Any]]:
    source, ends = plan.source, (0.0, *plan.phase_ends)
    about = {
        "panel": source.optimizer or source.what,
        "example_unit": source.example_unit,
        "tokens_per_example": source.tokens_per_example,
    }
    starts = [*(stage.start for stage in plan.stages), plan.budget]
    stages = zip(itertools.pairwise(starts), plan.stages, strict=True)
    phases = zip(itertools.pairwise(ends), source.phases, strict=True)
    rows: list[tuple[Any, ...]] = [("stage", *ends, stage.batch_size, None, None) for ends, stage in stages]
    rows += [("phase", *ends, phase.critical.value, *phase.critical.interval) for ends, phase in phases]
    return [about | dict(zip(_COLUMNS[1:], row, strict=True)) for row in rows]


def marks(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of what is planned and what was measured."""
    return [
        style.mark("planned batch size", color=_PLAN, linewidth=1.6),
        style.mark("critical batch size of the phase, with its interval", color=_CRITICAL, linestyle="--"),
    ]


@figure("schedule_plan", of=SchedulePlans, compute=compute, panel="panel", marks=marks)
def draw(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the stages as steps in front of the phases."""
    unit = table["example_unit"].iloc[0]
    style.axis_label(axes, "x", f"data ({unit}s)")
    style.axis_label(axes, "y", f"batch size ({unit}s)")
    style.log_scale(axes, "y", table[["value", "low", "high"]])
    style.data_scale(axes)
    bottom, top = axes.get_ylim()
    stages, phases = (table[table["kind"] == kind] for kind in ("stage", "phase"))
    for row in phases.itertuples():
        low, high = (end if pd.notna(end) else edge for end, edge in ((row.low, bottom), (row.high, top)))
        if pd.notna(row.low) or pd.notna(row.high):
            axes.fill_between([row.first, row.last], low, high, color=_CRITICAL, alpha=0.2, linewidth=0)
        if pd.notna(row.value):
            axes.plot([row.first, row.last], [row.value] * 2, color=_CRITICAL, linestyle="--", linewidth=1.0)
    edges = [*stages["first"], stages["last"].iloc[-1]]
    axes.plot(edges, [*stages["value"], stages["value"].iloc[-1]], drawstyle="steps-post", color=_PLAN, linewidth=1.6)
    axes.set_xlim(0, edges[-1])
