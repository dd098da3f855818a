"""Presentation of ``cbs schedule plan``: of plans, and of a table of stages."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from analysis.formatting import DASH, number, percent
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, quantity
from analysis.quantities import OPEN, Interval
from extensions.schedules.plan.plans import PlannedStage, PlanOutcome, SchedulePlan, SchedulePlans
from extensions.schedules.plan.stages import Stages

SHORT = ("batch size", "steps", "learning rate")
"""Headings of what a trainer is told of a stage, beside where it begins."""


@presentation.register
def _(plans: SchedulePlans) -> Presentation:
    level = f"[{percent(plans.config.confidence)} % interval]"
    wide: list[Table | str] = []
    for plan in plans.plans:
        name = f"{plan.source.optimizer}: " if plan.source.optimizer else ""
        lines = [f"from {plan.source.what}", plan.decided_by]
        if plan.ask.budget is not None:
            unit = "tokens" if plan.source.tokens_per_example else f"{plan.source.example_unit}s"
            budget = plan.budget * (plan.source.tokens_per_example or 1)
            lines.insert(0, f"{sum(stage.steps for stage in plan.stages):,} steps for {budget:,} {unit}")
        wide.append(stages([plan], f"{name}planned batch sizes {level}", lines))
        wide.append(outcomes([plan], f"{name}to the end of the last phase {level}", [plan.verdict, *plan.notes]))
    names = [plan.source.optimizer for plan in plans.plans]
    lines = [f"{name}: {plan.verdict}" if len(names) > 1 else plan.verdict
             for name, plan in zip(names, plans.plans, strict=True)]  # fmt: skip
    tables = {"schedule_plan": stages(plans.plans), "schedule_plan_outcomes": outcomes(plans.plans)}
    short = [
        each for each in tables["schedule_plan"].columns if each.heading in SHORT or each.heading.startswith("from")
    ]
    planned = replace(
        tables["schedule_plan"],
        columns=(Column("", "source.optimizer", "optimizer" if len(names) > 1 else "", name=True), *short),
        title=f"Planned batch sizes {level}",
        lines=lines,
    )
    return Presentation(
        shown=[planned],
        wide=[*wide, *filter(None, [plans.timing, *plans.notes])],
        then=[f"cbs report {shlex.quote(plans.folder)}"] if plans.folder else (),
        tables=tables,
        json="schedule_plan.json",
    )


def stages(plans: Sequence[SchedulePlan], title: str = "", lines: Sequence[str] = ()) -> Table:
    """Return a table with one row per stage."""
    rows = [(stage, plan) for plan in plans for stage in plan.stages]

    def tokens(stage: PlannedStage, plan: SchedulePlan) -> int | None:
        each = plan.source.tokens_per_example
        return None if each is None else stage.start * each

    counted = any(plan.source.tokens_per_example for plan in plans)
    columns = (
        Column("optimizer", "source.optimizer"),
        Column("start_examples", "start", "" if counted else "from example", text="{:,}".format),
        Column("start_tokens", tokens, "from token" if counted else "", text=number),
        Column("batch_size", heading="batch size"),
        Column("steps", heading="steps"),
        Column("until", heading="until", left=True),
        quantity("critical_batch_size", "critical batch size there", "critical"),
        Column("lr", "lr.value", "learning rate"),
        Column("lr_factor", "lr_factor.value", "times", _ends),
    )
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def outcomes(plans: Sequence[SchedulePlan], title: str = "", lines: Sequence[str] = ()) -> Table:
    """Return a table with one row per choice of batch sizes."""
    rows = [(outcome, plan) for plan in plans for outcome in plan.outcomes]
    timed = any(outcome.hours.value is not None for outcome, _ in rows)

    columns = (
        Column("optimizer", "source.optimizer"),
        Column("name"),
        Column("", _name, "batch sizes, learning rate", name=True),
        Column("recommended"),
        Column("batch_sizes", _sizes, "from – to"),
        Column("", _lrs, "learning rate"),
        Column("first_lr", lambda outcome, *_: outcome.lrs[0]),
        Column("last_lr", lambda outcome, *_: outcome.lrs[-1]),
        quantity("steps", "steps"),
        quantity("examples", "examples"),
        quantity("hours", "hours" if timed else ""),
        quantity("examples_saved", "examples saved"),
    )
    legend = "examples saved: share of those of the constant batch size with as many steps; *: recommended"
    return Table(columns=columns, rows=rows, title=title, lines=[*([legend] if title else []), *lines])


def _ends(stage: PlannedStage, _: object) -> Interval:
    """Return the interval of the factor; open if the factor is known exactly."""
    low, high = stage.lr_factor.interval
    return OPEN if low == high else (low, high)


def _sizes(outcome: PlanOutcome, *_: object) -> str:
    first, last = outcome.batch_sizes[0], outcome.batch_sizes[-1]
    return f"{first:,}" if first == last else f"{first:,} – {last:,}"


def _name(outcome: PlanOutcome, *_: object) -> str:
    return f"{outcome.name} *" if outcome.recommended else outcome.name


def _lrs(outcome: PlanOutcome, *_: object) -> str:
    first, last = outcome.lrs[0], outcome.lrs[-1]
    if first is None or last is None:
        return DASH
    return number(first) if first == last else f"{number(first)} – {number(last)}"


@presentation.register
def _(read: Stages) -> Presentation:
    columns = (
        Column("start", heading=f"from {read.unit}", text="{:,}".format),
        Column("batch_size", heading="batch size"),
        Column("steps", heading="steps"),
        Column("share", heading="share of the examples"),
    )
    length = "" if read.tokens_per_example is None else f", of {read.tokens_per_example:,} tokens each"
    lines = [
        f"{read.steps:,} steps for {read.budget:,} {read.unit}; batch sizes in examples{length}",
        *(f"constant batch size {size:,}: {_saved(saved)}" for size, saved in read.constant.items()),
    ]
    table = Table(columns=columns, rows=read.stages, lines=lines)
    return Presentation(shown=[table], tables={"stages": table}, json="read.json")


def _saved(share: float) -> str:
    if abs(share) < 5e-4:
        return "as many steps"
    return f"saves {number(100 * share)} % of the steps" if share > 0 else f"takes {number(-100 * share)} % more steps"
