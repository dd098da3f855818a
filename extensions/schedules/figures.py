"""Figures of cbs schedule: a plan beside critical batch sizes; runs as they went, their final losses, and the front."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.present import style
from analysis.present.figures import figure, tidy
from analysis.present.figures.of_answers import about, fitted
from extensions.schedules.judge.judged import Judged, Schedules
from extensions.schedules.losses import ScheduleLosses
from extensions.schedules.plan.plans import SchedulePlan, SchedulePlans

_PLANNED = ["panel", "kind", "first", "last", "value", "low", "high"]
_PLAN, _CRITICAL = "C0", style.GREY


def compute_plan(plans: SchedulePlans) -> pd.DataFrame:
    """Return rows of two kinds (column ``kind``): ``stage`` with its batch size and ``phase`` with its critical batch
    size and interval, each from the examples ``first`` to ``last``."""
    return tidy([row for plan in plans.plans for row in _rows(plan)], _PLANNED)


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
    return [about | dict(zip(_PLANNED[1:], row, strict=True)) for row in rows]


def marks_plan(table: pd.DataFrame) -> list[Line2D]:
    """Return key entries of what is planned and what was measured."""
    return [
        style.mark("planned batch size", color=_PLAN, linewidth=1.6),
        style.mark("critical batch size of the phase, with its interval", color=_CRITICAL, linestyle="--"),
    ]


@figure("schedule_plan", of=SchedulePlans, compute=compute_plan, panel="panel", marks=marks_plan)
def draw_plan(axes: Axes, table: pd.DataFrame) -> None:
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


_LOSSES = ["panel", "optimizer", "steps", "metric", "low", "high", "label"]


def compute_losses(result: ScheduleLosses) -> pd.DataFrame:
    """Return one row per schedule and first batch size, or constant batch size; ``optimizer`` is the text in the
    key."""
    rows = []
    for entry in result.entries:
        constant = entry.schedule == "constant"
        name = f"constant, B = {entry.batch_size}" if constant else f"{entry.schedule} from {entry.batch_size}"
        low, high = entry.metric.interval
        label = f"{style.words(result.metric)} at the end"
        values = (f"{entry.sweep}, {entry.optimizer}", name, entry.steps, entry.metric.value, low, high, label)
        rows.append(dict(zip(_LOSSES, values, strict=True)))
    return tidy(rows, _LOSSES)


@figure("schedule_losses", of=ScheduleLosses, compute=compute_losses, panel="panel")
def draw_losses(axes: Axes, table: pd.DataFrame) -> None:
    """Draw a mark with its interval for each, with steps on a log axis."""
    axes.set(xlabel="steps", ylabel=table["label"].iloc[0])
    style.log_scale(axes, "x", table["steps"], most=style.most_ticks(axes))
    handles = []
    for name, look in style.looks(table["optimizer"]).items():
        style.points(axes, table[table["optimizer"] == name], "steps", "metric", look)
        handles.append(style.handle(name, look, line=False))
    style.key(axes, handles, table["steps"], table[["metric", "high"]].max(axis=1))


_COURSES = [
    "panel", "optimizer", "x", "y", "x_label", "y_label", "target_value", "tokens_per_example", "target",
]  # fmt: skip
_MOST = 400  # Largest number of points of a line; longer ones are thinned out evenly along the run


def compute_courses(schedules: Schedules) -> pd.DataFrame:
    """Return one row per point of a line, with the panel, its axes and the name of the schedule (``optimizer``) in
    columns.

    Intrinsic time is the sum of the learning rates so far.
    """
    rows = [panel for entry in _hardest(schedules) for panel in _panels(entry)]
    if not rows:
        return tidy([], _COURSES)
    table = pd.concat(rows)
    return table.iloc[pd.factorize(table["panel"])[0].argsort(kind="stable")].reset_index(drop=True)


def _hardest(schedules: Schedules) -> list[Judged]:
    """Return one run of every schedule: the one at the hardest target if there are several."""
    kept: dict[tuple[int, str, int], Judged] = {}
    for entry in schedules.entries:
        whose = id(entry.answer.group), entry.choice, entry.batch_size
        target, known = entry.answer.target, kept.get(whose)
        if entry.course is not None and (known is None or known.answer.target.reached(target.value)):
            kept[whose] = entry
    return list(kept.values())


def _panels(entry: Judged) -> list[pd.DataFrame]:
    assert entry.course is not None
    group, target = entry.answer.group, entry.answer.target
    course, measured = entry.course, entry.course[entry.course["value"].notna()]
    tokens = "" if group.tokens_per_example is None else f" of {group.tokens_per_example:g} tokens"
    unit, metric = f"data ({group.example_unit}s{tokens})", style.words(target.metric)
    time = course["lr"].cumsum()
    begins = course["examples"] - course["batch_size"]
    scope = "" if not group.sweep else f"{group.optimizer}: "
    about: dict[str, Any] = {
        "optimizer": f"{entry.schedule} from {entry.batch_size}", "target_value": target.value,
        "tokens_per_example": group.tokens_per_example, "target": str(target),
    }  # fmt: skip
    lines = (
        ("batch size", unit, "batch size", begins, course["batch_size"]),
        ("learning rate", unit, "learning rate", begins, course["lr"]),
        ("over data", unit, metric, measured["examples"], measured["value"]),
        ("over steps", "steps", metric, measured["step"], measured["value"]),
        ("over intrinsic time", "sum of learning rates", metric, time[measured.index], measured["value"]),
    )
    frames = []
    for name, x_label, y_label, x, y in lines:
        kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST)).round().astype(int))
        if name == "batch size":
            # keep every change of the batch size, whatever is thinned out
            changed = np.flatnonzero(np.diff(y.to_numpy())) + 1
            kept = np.unique([*kept, *changed])
        points = pd.DataFrame({"x": x.to_numpy()[kept], "y": y.to_numpy()[kept]})
        frames.append(points.assign(panel=scope + name, x_label=x_label, y_label=y_label, **about)[_COURSES])
    return frames


def marks_courses(table: pd.DataFrame) -> list[Any]:
    """Return key entries of the schedules, shown below the panels."""
    each = style.each(table, after=["constant batch size"])
    return [style.handle(name, look._replace(marker="")) for name, look, _ in each]


@figure("schedule_courses", of=Schedules, compute=compute_courses, panel="panel", marks=marks_courses)
def draw_courses(axes: Axes, table: pd.DataFrame) -> None:
    """Draw steps for settings and lines for measurements."""
    x_label, y_label = table["x_label"].iloc[0], table["y_label"].iloc[0]
    stairs = y_label in ("batch size", "learning rate")
    style.axis_label(axes, "x", x_label)
    style.axis_label(axes, "y", y_label)
    if y_label != "learning rate":
        style.log_scale(axes, "y", table["y"], table["y"] if y_label == "batch size" else None)
    if x_label.startswith("data"):
        style.data_scale(axes)
    drawn = "steps-post" if stairs else "default"
    for _, look, (rows,) in style.each(table, y_label, column="y_label", after=["constant batch size"]):
        axes.plot(rows["x"], rows["y"], color=look.colour, linestyle=look.dashes, drawstyle=drawn)
    if not stairs:
        axes.axhline(float(table["target_value"].iloc[0]), color=style.GREY, linestyle=":", linewidth=0.9)


# Number of points of the curve of constant batch sizes, and how far it goes beyond them, as a factor
_RESOLUTION, _BEYOND = 120, 1.5

_FRONT = [
    "panel", "optimizer", "kind", "batch_size", "steps", "examples", "low", "high", "x_low", "x_high",
]  # fmt: skip


def compute_front(schedules: Schedules) -> pd.DataFrame:
    """Return rows of three kinds (column ``kind``): ``point`` per constant batch size, ``fit`` along their curve,
    ``schedule`` per schedule, with the interval of its steps (``x_low``, ``x_high``) and examples (``low``, ``high``).

    The column ``optimizer`` has the name of the schedule, or ``constant batch size``.
    """
    rows: list[dict[str, Any]] = []
    answers = list({id(entry.answer): entry.answer for entry in schedules.entries}.values())
    for answer in answers:
        panel = {"panel": f"{answer.group.sweep}, {answer.group.workload}, {answer.group.optimizer}"}
        whose = about(answer) | panel | {"optimizer": "constant batch size"}
        reached = [point for point in answer.points if point.reached]
        for point in reached:
            took = {"steps": point.steps_to_target, "examples": point.examples_to_target}
            rows.append(whose | {"kind": "point", "batch_size": point.batch_size} | took)
        if answer.draws is not None:
            sizes = np.geomspace(reached[0].batch_size / _BEYOND, reached[-1].batch_size * _BEYOND, _RESOLUTION)
            rows += [
                whose | {**row, "low": np.nan, "high": np.nan, "examples": row["batch_size"] * row["steps"]}
                for row in fitted(answer, sizes)
                if row["kind"] == "fit"
            ]
        for entry in schedules.entries:
            if entry.answer is answer and entry.comparison is not None:
                steps, examples = entry.comparison.steps, entry.comparison.examples
                rows.append(
                    about(answer) | panel | {
                        "optimizer": f"{entry.schedule} from {entry.batch_size}", "kind": "schedule",
                        "batch_size": entry.batch_size, "steps": steps.value, "examples": examples.value,
                        **dict(zip(("x_low", "x_high"), steps.interval, strict=True)),
                        **dict(zip(("low", "high"), examples.interval, strict=True)),
                    }
                )  # fmt: skip
    return tidy(rows, _FRONT) if any(row["kind"] == "schedule" for row in rows) else tidy([], _FRONT)


@figure("schedule_front", of=Schedules, compute=compute_front, panel="panel")
def draw_front(axes: Axes, table: pd.DataFrame) -> None:
    """Draw constant batch sizes in grey, and every schedule in a style of its own."""
    marks = table[table["kind"] != "fit"]
    unit = table["example_unit"].iloc[0]
    label = f"steps to {style.words(table['target'].iloc[0])}"
    steps, examples = marks[["steps", "x_low", "x_high"]], marks[["examples", "low", "high"]]
    style.log_axes(axes, steps, examples, label, f"data ({unit}s)", above=0.12)
    style.token_axis(axes, table["tokens_per_example"], axis="y", quantity="data")
    points, fit, scheduled = (table[table["kind"] == kind] for kind in ("point", "fit", "schedule"))
    axes.plot(fit["steps"], fit["examples"], color=style.GREY, zorder=2)
    axes.plot(points["steps"], points["examples"], "o", color=style.GREY, zorder=3)
    key = [style.mark("constant batch size", marker="o", linestyle="-")]
    # the first style, a circle, is that of the constant batch sizes
    for name, look, (rows,) in style.each(scheduled, "schedule", after=["constant batch size"]):
        style.points(axes, rows, "steps", "examples", look)
        key.append(style.handle(name, look, line=False))
    style.key(axes, key, marks["steps"], marks["examples"])
    labels = [(row.steps, row.examples, f"{row.batch_size:g}", style.GREY) for row in points.itertuples()]
    both = ["steps", "examples"]
    style.label_points(axes, labels, marks[both].to_numpy(), fit[both].to_numpy())
