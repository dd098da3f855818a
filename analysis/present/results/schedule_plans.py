"""What ``cbs schedule plan`` writes and prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.arrays import Quantity
from analysis.phrases import DASH, number, percent
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table
from analysis.questions.schedule_plan.plans import Outcome, SchedulePlan, SchedulePlans


@presentation.register
def _(found: SchedulePlans) -> Presentation:
    level = f"[{percent(found.config.confidence)} % interval]"
    shown: list[Table | str] = []
    for plan in found.plans:
        name = f"{plan.source.optimizer}: " if plan.source.optimizer else ""
        steps = sum(stage.steps for stage in plan.stages)
        unit = "tokens" if plan.source.tokens_per_example else f"{plan.source.example_unit}s"
        budget = plan.budget * (plan.source.tokens_per_example or 1)
        lines = [f"{steps:,} steps for {budget:,} {unit}; from {plan.source.what}", plan.decided_by]
        shown.append(stages([plan], f"{name}planned batch sizes {level}", lines))
        shown.append(outcomes([plan], f"{name}to the end of the last phase {level}", [plan.verdict, *plan.notes]))
    shown += filter(None, [found.timing, *found.notes])
    tables = {"schedule_plan": stages(found.plans), "schedule_plan_outcomes": outcomes(found.plans)}
    return Presentation(shown=shown, tables=tables, json="schedule_plan.json")


def stages(plans: Sequence[SchedulePlan], title: str = "", lines: Sequence[str] = ()) -> Table:
    """One row per stage."""
    rows: list[tuple[Any, ...]] = [(stage, plan) for plan in plans for stage in plan.stages]

    def tokens(stage: Any, plan: SchedulePlan) -> int | None:
        each = plan.source.tokens_per_example
        return None if each is None else stage.start * each

    counted = any(plan.source.tokens_per_example for plan in plans)
    columns = (
        Column("optimizer", lambda _, plan: plan.source.optimizer),
        Column("start_examples", "start", "" if counted else "from example", text="{:,}".format),
        Column("start_tokens", tokens, "from token" if counted else "", text=_whole),
        Column("batch_size", heading="batch size"),
        Column("steps", heading="steps"),
        Column("until", heading="until", left=True),
        Column("critical_batch_size", "critical.value", "critical batch size there", "critical.interval"),
        Column("lr_factor", "lr_factor.value", "learning rate times", _ends),
    )
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def outcomes(plans: Sequence[SchedulePlan], title: str = "", lines: Sequence[str] = ()) -> Table:
    """One row per choice of batch sizes."""
    rows: list[tuple[Any, ...]] = [(outcome, plan) for plan in plans for outcome in plan.outcomes]
    timed = any(outcome.hours.value is not None for outcome, _ in rows)

    def quantity(name: str, heading: str) -> Column:
        return Column(name, f"{name}.value", heading, f"{name}.interval")

    columns = (
        Column("optimizer", lambda _, plan: plan.source.optimizer),
        Column("name", heading="batch sizes", name=True),
        Column("batch_sizes", _sizes, "from – to"),
        quantity("steps", "steps"),
        quantity("examples", "examples"),
        quantity("hours", "hours" if timed else ""),
        quantity("gamma", "gamma"),
        quantity("steps_saved", "steps saved"),
    )
    said = "steps saved: share of the steps of the constant batch size with as many examples"
    return Table(columns=columns, rows=rows, title=title, lines=[*([said] if title else []), *lines])


def _ends(stage: Any, *_: object) -> tuple[float | None, float | None]:
    """Of the factor; a factor that is known has none to show."""
    factor: Quantity = stage.lr_factor
    low, high = factor.interval
    return (None, None) if low == high else (low, high)


def _sizes(outcome: Outcome, *_: object) -> str:
    first, last = outcome.batch_sizes[0], outcome.batch_sizes[-1]
    return f"{first:,}" if first == last else f"{first:,} – {last:,}"


def _whole(value: int | None) -> str:
    return DASH if value is None else number(value)
