"""Presentation of ``cbs recommend``: what it writes and prints."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis.estimate.diagnosis import Verdict
from analysis.estimate.scopes import SCOPE
from analysis.formatting import number, percent, plural, share, time_unit, with_interval
from analysis.present import Presentation, presentation
from analysis.present.sentences import home, judged
from analysis.present.table import Column, Table, files, quantity
from extensions.recommending.plans import Plan, Recommendation, Recommendations, Winner


@presentation.register
def _(recommendations: Recommendations) -> Presentation:
    wish, said = recommendations.wish, f"[{percent(recommendations.config.confidence)} % interval]"
    times = recommendations.throughput
    shown: list[Table | str] = []
    wide: list[Table | str] = []
    for entry in recommendations.recommendations:
        title = f"{entry.title}, up to {plural(wish.devices, 'device')} {said}"
        everything = plans([entry], f"Every optimizer: {title}", list(sentences(entry, exact=times.exact)))
        shown.append(best(everything, entry, title))
        wide.append(everything)
    shown += [times.statement, *recommendations.notes]
    answers = [answer for entry in recommendations.recommendations for answer in entry.answers]
    folder, known = home(answers), all(None not in answer.interval for answer in answers)
    return Presentation(
        shown=shown,
        wide=[*wide, times.spread],
        then=[f"cbs {'schedule plan' if known else 'analyze'} {folder}"] if folder else (),
        tables={"recommendations": plans(recommendations.recommendations)},
        json="recommendation.json",
    )


def best(everything: Table, recommendation: Recommendation, title: str) -> Table:
    """Return the rows of the best optimizer for every objective, and what speaks against them."""
    rows = [row for row in everything.rows if row[1].optimizer == row[2].optimizer]
    likely = Column("", lambda *row: row[2].probability, "P(best)", text=share)

    def size(_: object, plan: Plan, *__: object) -> str:
        return f"{plan.batch_size}{' *' if plan.remarks else ''}"

    sizes = {"batch size": Column("", size, "batch size")}
    columns = [sizes.get(each.heading, each) for each in everything.columns]
    kept = [column for column in columns if column.heading not in ("device-hours", "examples")]
    chosen = {row[1].optimizer for row in rows}
    doubted = [answer for answer in recommendation.answers if answer.group.optimizer in chosen or not rows]
    lines = [f"B_crit: {line[0].lower()}{line[1:]}" if line.startswith("Ok") else f"B_crit: {line}"
             for line in judged(doubted, each=True)]  # fmt: skip
    if not rows:
        lines.insert(0, "no batch size can be recommended")
    if any(row[1].remarks for row in rows):
        lines.append("*: a better one may lie beyond what was measured, see --wide")
    if rows and any(answer.verdict is not Verdict.OK for answer in doubted):
        words = (
            "within 5 %: read off the curve, without its uncertainty; --wide has the interval of the best batch size"
        )
        lines.append(words)
    for advice in recommendation.advice:
        twice = advice.doubling_devices
        if twice is not None and any(row[1].objective == "time" and row[1] is advice.plans["time"] for row in rows):
            time, cost = (number(factor.value) for factor in (twice.time_factor, twice.cost_factor))
            lines.append(
                f"twice the devices, {2 * twice.devices}, take {time} times the time and {cost} times the device-hours"
            )
    several = len(recommendation.answers) > 1
    return replace(everything, title=title, columns=(*kept, *([likely] if several else [])), rows=rows, lines=lines)


def plans(recommendations: Sequence[Recommendation], title: str = "", lines: Sequence[str] = ()) -> Table:
    """Return a table with one row per objective and optimizer."""
    rows = [
        (entry.scope, advice.plans[best.objective], best, advice.answer)
        for entry in recommendations
        for best in entry.winners
        for advice in entry.advice
        if best.objective in advice.plans
    ]
    unit, length = time_unit(plan.seconds.value or 0.0 for _, plan, *_ in rows)
    priced = "cost" if any(plan.cost is not None for _, plan, *_ in rows) else "device_hours"

    def best(_: object, plan: Plan, winner: Winner, __: object) -> bool:
        return winner.optimizer == plan.optimizer

    columns = (
        *files(*SCOPE),
        Column("objective", heading="least", name=True),
        Column("optimizer", heading="optimizer", name=True),
        Column("batch_size", heading="batch size"),
        Column("devices", heading="devices"),
        Column("near_low", lambda _, plan, *__: plan.within_5_percent[0]),
        Column("near_high", lambda _, plan, *__: plan.within_5_percent[1]),
        Column("", "within_5_percent", "within 5 %", text=lambda ends: "–".join(map(str, ends))),
        Column("best_batch_size_low", lambda _, plan, *__: plan.best_batch_size_interval[0]),
        Column("best_batch_size_high", lambda _, plan, *__: plan.best_batch_size_interval[1]),
        Column("probability_near", "probability_within_5_percent"),
        *map(quantity, ("steps", "examples", "seconds", "device_hours", "cost")),
        quantity("", f"time ({unit})", "seconds", times=1 / length),
        Column("", f"{priced}.value", priced.replace("_", "-")),
        Column("", "examples.value", "examples"),
        Column("best_optimizer", best),
        Column("probability_best", lambda *row: row[2].probability if best(*row) else None),
        Column("verdict"),
        Column("remarks", lambda _, plan, *__: "; ".join(plan.remarks)),
    )
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def sentences(recommendation: Recommendation, *, exact: bool) -> Iterator[str]:
    """Yield the lines below the table; ``exact`` is whether step times are taken as exact."""
    condition = " if the step times are exact" if exact else ""
    for best in recommendation.winners:
        if best.probability is not None:
            likely = f"with probability {share(best.probability)}{'' if best.objective == 'examples' else condition}"
            yield f"least {best.objective}: {best.optimizer}, {likely}"
    remarks: dict[str, list[Plan]] = {}
    for plan in (plan for advice in recommendation.advice for plan in advice.plans.values()):
        for remark in plan.remarks:
            remarks.setdefault(remark, []).append(plan)
    for remark, plans in remarks.items():
        objectives, optimizers = (
            dict.fromkeys(getattr(each, of) for each in plans) for of in ("objective", "optimizer")
        )
        yield f"least {' and '.join(objectives)}, {', '.join(optimizers)}: {remark}"
    for advice in recommendation.advice:
        yield from (f"{advice.optimizer}: {remark}" for remark in advice.remarks)
        time = advice.plans.get("time")
        if time is not None:
            low, high = map(number, time.best_batch_size_interval)
            near = time.probability_within_5_percent
            known = (
                "takes the least time of those whose steps are known; the best may lie beyond"
                if near is None
                else f"is within 5 % of the least time with probability {share(near)}{condition}; the best batch size "
                f"itself lies within [{low}, {high}]"
            )
            yield f"{advice.optimizer}: batch size {time.batch_size} {known}"
        if (twice := advice.doubling_devices) is not None:
            time_factor, cost_factor = (
                with_interval(f.value, f.interval) for f in (twice.time_factor, twice.cost_factor)
            )
            new = "".join(f"; {remark}" for remark in twice.remarks if remark not in remarks)
            yield (
                f"{advice.optimizer}: from {plural(twice.devices, 'device')} to {2 * twice.devices} the least time "
                f"changes by the factor {time_factor}, device-hours by {cost_factor} "
                f"(batch size {' to '.join(map(str, twice.batch_sizes))}){new}"
            )
