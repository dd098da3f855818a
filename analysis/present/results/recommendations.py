"""What ``cbs recommend`` writes and prints."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.phrases import plural, share, time_unit
from analysis.present import Presentation, presentation
from analysis.present.numbers import number, percent, with_interval
from analysis.present.table import Column, Table
from analysis.questions.recommendation.plans import Doubling, Plan, Recommendation, Recommendations, Winner


@presentation.register
def _(found: Recommendations) -> Presentation:
    wish, said = found.wish, f"[{percent(found.config.confidence)} % interval]"
    shown: list[Table | str] = []
    for entry in found.recommendations:
        title = f"{entry.title}, up to {plural(wish.devices, 'device')} {said}" if entry.winners else ""
        shown.append(plans([entry], title, sentences(entry)))
    shown += [f"{found.throughput.statement}; the intervals hold the uncertainty of the steps alone", *found.notes]

    tables = {"recommendations": plans(found.recommendations)}
    return Presentation(shown=shown, tables=tables, json="recommendation.json")


def plans(recommendations: Sequence[Recommendation], title: str = "", lines: Sequence[str] = ()) -> Table:
    """One row per objective and optimizer."""
    rows = [
        _Row(entry.scope, advice.plans[best.objective], best, str(advice.answer.verdict))
        for entry in recommendations
        for best in entry.winners
        for advice in entry.advice
        if best.objective in advice.plans
    ]
    unit, length = time_unit(row.plan.seconds.value or 0.0 for row in rows)
    priced = "cost" if any(row.plan.cost is not None for row in rows) else "device_hours"

    def quantity(name: str) -> Column:
        return Column(name, f"plan.{name}.value", interval=f"plan.{name}.interval")

    def best(row: _Row) -> bool:
        return row.best.optimizer == row.plan.optimizer

    columns = (
        *(Column(name, f"scope.{name}") for name in ("sweep", "workload", "metric", "target")),
        Column("objective", "plan.objective", "least", name=True),
        Column("optimizer", "plan.optimizer", "optimizer", name=True),
        Column("batch_size", "plan.batch_size", "batch size"),
        Column("devices", "plan.devices", "devices"),
        Column("near_low", lambda row: row.plan.within_5_percent[0]),
        Column("near_high", lambda row: row.plan.within_5_percent[1]),
        Column("", lambda row: "–".join(map(str, row.plan.within_5_percent)), "within 5 %"),
        Column("best_batch_size_low", lambda row: row.plan.best_batch_size_interval[0]),
        Column("best_batch_size_high", lambda row: row.plan.best_batch_size_interval[1]),
        Column("probability_near", "plan.probability_within_5_percent"),
        *map(quantity, ("steps", "examples", "seconds", "device_hours", "cost")),
        Column(
            "",
            lambda row: row.plan.seconds.times(1 / length).value,
            f"time ({unit})",
            lambda row: row.plan.seconds.times(1 / length).interval,
        ),
        Column("", f"plan.{priced}.value", priced.replace("_", "-")),
        Column("", "plan.examples.value", "examples"),
        Column("best_optimizer", best),
        Column("probability_best", lambda row: row.best.probability if best(row) else None),
        Column("verdict"),
        Column("remarks", lambda row: "; ".join(row.plan.remarks)),
    )
    return Table(columns=columns, rows=rows, title=title, lines=lines)


@dataclass(frozen=True)
class _Row:
    """A plan, where it belongs, and what is the best for its objective."""

    scope: dict[str, Any]
    plan: Plan
    best: Winner
    verdict: str


def sentences(recommendation: Recommendation) -> list[str]:
    """Everything that stands below the table, one line each."""
    lines = [_winner(best) for best in recommendation.winners if best.probability is not None]
    remarks: dict[str, list[Plan]] = {}
    for plan in (plan for advice in recommendation.advice for plan in advice.plans.values()):
        for remark in plan.remarks:
            remarks.setdefault(remark, []).append(plan)
    for remark, plans in remarks.items():
        objectives, optimizers = (
            list(dict.fromkeys(getattr(plan, name) for plan in plans)) for name in ("objective", "optimizer")
        )
        lines.append(f"least {' and '.join(objectives)}, {', '.join(optimizers)}: {remark}")
    for advice in recommendation.advice:
        lines += [f"{advice.optimizer}: {remark}" for remark in advice.remarks]
        time = advice.plans.get("time")
        near = None if time is None else time.probability_within_5_percent
        if time is not None and near is not None:
            ends = time.best_batch_size_interval
            lines.append(
                f"{advice.optimizer}: batch size {time.batch_size} is within 5 % of the least time with probability "
                f"{share(near)}; the best batch size itself lies within [{number(ends[0])}, "
                f"{number(ends[1])}]"
            )
        if advice.doubling_devices is not None:
            lines.append(_doubling(advice.optimizer, advice.doubling_devices, said=remarks))
    return lines


def _winner(best: Winner) -> str:
    assert best.probability is not None
    return f"least {best.objective}: {best.optimizer}, with probability {share(best.probability)}"


def _doubling(optimizer: str, doubling: Doubling, said: Container[str]) -> str:
    time, cost = (with_interval(each.value, each.interval) for each in (doubling.time_factor, doubling.cost_factor))
    sizes = " to ".join(map(str, doubling.batch_sizes))
    remarks = "".join(f"; {remark}" for remark in doubling.remarks if remark not in said)
    return (
        f"{optimizer}: from {plural(doubling.devices, 'device')} to {2 * doubling.devices} the least time changes by "
        f"the factor {time}, device-hours by {cost} (batch size {sizes}){remarks}"
    )
