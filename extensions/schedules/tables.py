"""Presentation of cbs schedule plan and cbs schedule judge: what they write and print."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from analysis.formatting import DASH, number, percent, share, time_unit
from analysis.present import Presentation, presentation
from analysis.present.answers import about, titled
from analysis.present.sentences import home
from analysis.present.table import Column, Table, files, quantity
from analysis.quantities import OPEN, UNKNOWN, Interval, Quantity
from extensions.schedules.judge.judged import HOUR, Judged, Schedules
from extensions.schedules.losses import ScheduleLosses
from extensions.schedules.plan.plans import PlannedStage, PlanOutcome, SchedulePlan, SchedulePlans
from extensions.schedules.plan.stages import Stages

SHORT = ("batch size", "steps", "learning rate")
"""Headings of what a trainer is told of a stage, beside where it begins."""

# Schedules that are shown unless everything is; those that save most
MOST = 3


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
    tables = {"schedule_plan": stages(plans.plans), "schedule_plan_outcomes": outcomes(plans.plans)}
    if len(plans.plans) > 1:
        planned = by_optimizer(plans.plans, f"Planned batch sizes {level}")
    else:
        whole, lines = tables["schedule_plan"], [plan.verdict for plan in plans.plans]
        short = tuple(each for each in whole.columns if each.heading in SHORT or each.heading.startswith("from "))
        planned = replace(whole, columns=short, title=f"Planned batch sizes {level}", lines=lines)
    return Presentation(
        shown=[replace(planned, lines=[*plans.notes, *planned.lines])],
        wide=[*wide, *filter(None, [plans.timing])],
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


def by_optimizer(plans: Sequence[SchedulePlan], title: str) -> Table:
    """Return a table with one row per plan: its stages as one types them, and what they save."""
    rows = [(next(each for each in plan.outcomes if each.recommended), plan) for plan in plans]
    counted = any(plan.source.tokens_per_example for plan in plans)

    def typed(_: PlanOutcome, plan: SchedulePlan) -> str:
        each = plan.source.tokens_per_example or 1
        return " ".join(f"{_amount(start * each)}:{size}" for start, size in plan.table)

    columns = (
        Column("", "source.optimizer", "optimizer", name=True),
        Column("", typed, f"from {'token' if counted else 'example'}:batch size", left=True),
        Column("", _lrs, "learning rate"),
        Column("", lambda _, plan: plan.outcomes[-1].batch_sizes[0], "constant"),
        _percent("saves, %", lambda outcome, _: outcome.examples_saved),
    )
    lines, known = [], [outcome.examples_saved.value is not None for outcome, _ in rows]
    if any(known):
        lines = ["saves: of the examples of the constant batch size with as many steps; where this may be 0, the one "
                 "that is shown is as good as far as was measured"]  # fmt: skip
    said: dict[str, list[str]] = {}
    for plan, is_known in zip(plans, known, strict=True):
        said.setdefault("" if is_known else plan.verdict, []).append(plan.source.optimizer)
    lines += [f"{', '.join(names)}: {verdict}" for verdict, names in said.items() if verdict]
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def _amount(count: int) -> str:
    """Three digits of a number of examples or tokens, as a table of stages takes it.

    >>> [_amount(count) for count in (0, 9_999, 26_592, 157_600, 1_250_000, 168_000_000_000)]
    ['0', '9999', '26.6K', '158K', '1250K', '168B']
    """
    size, suffix = next(((1000**power, unit) for power, unit in ((4, "T"), (3, "B"), (2, "M"), (1, "K"))
                         if count >= 10 * 1000**power), (1, ""))  # fmt: skip
    return f"{round(count / size, max(0, 3 - len(str(count // size)))):g}{suffix}"


def outcomes(plans: Sequence[SchedulePlan], title: str = "", lines: Sequence[str] = ()) -> Table:
    """Return a table with one row per choice of batch sizes."""
    rows = [(outcome, plan) for plan in plans for outcome in plan.outcomes]
    timed = any(outcome.hours.value is not None for outcome, _ in rows)

    columns = (
        Column("optimizer", "source.optimizer"),
        Column("name"),
        Column("", lambda plan, *_: plan.name + " *" * plan.recommended, "batch sizes, learning rate", name=True),
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


@presentation.register
def _(schedules: Schedules) -> Presentation:
    table, entries = verdicts(schedules.entries), sorted(schedules.entries, key=_saved_first)
    remarks = [
        f"{entry.answer.group.optimizer}, {entry.schedule} from {entry.batch_size}: {note}"
        for entry in entries
        for note in entry.notes
    ]
    level, folder = percent(schedules.config.confidence), home([entry.answer for entry in entries])
    return Presentation(
        shown=[at_a_glance(entries, f"[{level} % interval]"), *remarks[:1], *schedules.notes],
        wide=[table, *remarks[1:], *schedules.timing, f"every interval {level} %"],
        then=[f"cbs report {folder}"] if folder else (),
        tables={"schedules": table},
        latex=("schedules",),
        json="schedules.json",
    )


def _saved_first(entry: Judged) -> float:
    saved = entry.comparison.steps_saved.value if entry.comparison else None
    return math.inf if saved is None else -saved


def _percent(heading: str, of: Callable[..., Quantity]) -> Column:
    """Return the column of a share with its interval in whole percent."""

    def whole(*row: object) -> list[int | None]:
        saved = of(*row)
        return [None if share is None else round(100 * share) for share in (saved.value, *saved.interval)]

    return Column("", lambda *row: whole(*row)[0], heading, lambda *row: whole(*row)[1:], signed=True)


def at_a_glance(entries: Sequence[Judged], said: str) -> Table:
    """Return a table with one row for each of the first :data:`MOST` schedules: what it saves, and the verdict."""
    shown = entries[:MOST]
    answers = [entry.answer for entry in shown]
    columns = (
        *about(answers),
        Column("", "schedule", "batch schedule", name=True),
        Column("", "batch_size", "from B" if len({entry.batch_size for entry in shown}) > 1 else "", name=True),
        _percent("steps saved, %", lambda entry, _: entry.comparison.steps_saved if entry.comparison else UNKNOWN),
        *(replace(column, interval=None) for column in _times(shown) if column.heading.startswith("time saved")),
        Column("", "verdict", "verdict", left=True),
    )
    lines = ["saved: against the best constant batch size at equal examples"]
    lines += [f"{MOST} of {len(entries)} schedules: --wide shows all"] if len(entries) > MOST else []
    title = f"Batch schedules{titled(answers)} {said}" if entries else ""
    return Table(
        columns=columns, rows=list(zip(shown, answers, strict=True)), title=title, lines=lines if entries else ()
    )


def verdicts(entries: Sequence[Judged]) -> Table:
    """Return a table with one row per optimizer, target, schedule and first batch size."""
    answers, times = [entry.answer for entry in entries], _times(entries)
    columns = (
        *about(answers),
        Column("schedule", heading="batch schedule", name=True),
        Column("choice"),
        Column("batch_size", heading="from B", name=True),
        Column("best_lr", heading="learning rate"),
        *files("at_grid_edge", "seeds_reached", "seeds"),
        quantity("steps", "steps", "comparison.steps"),
        quantity("examples", "examples", "comparison.examples"),
        quantity("gamma", "gamma", "comparison.gamma", r"$\gamma$"),
        quantity("steps_saved", "steps saved", "comparison.steps_saved"),
        quantity("examples_saved", "examples saved", "comparison.examples_saved"),
        *times,
        Column("equal_examples", "comparison.equal_examples", "equal examples at B"),
        Column("equal_steps", "comparison.equal_steps"),
        Column("beats", "comparison.beats", "P(saves steps)", text=share, wide=True),
        Column("verdict", heading="verdict", left=True),
        Column("notes", lambda entry, _: "; ".join(entry.notes)),
    )
    lines = [
        "gamma = (S/S_min - 1)(E/E_min - 1), below 1 where a schedule beats every constant batch size",
        "saved: share of the steps of the best constant batch size at equal examples, and of the examples of the best "
        "one at equal steps",
        *(["time saved: against the best constant batch size at equal examples"] if times else []),
    ]
    title = f"Batch schedules against constant batch sizes{titled(answers)}" if entries else ""
    rows = list(zip(entries, answers, strict=True))
    return Table(columns=columns, rows=rows, title=title, lines=lines if entries else ())


def _times(entries: Sequence[Judged]) -> list[Column]:
    """Return columns of the time a schedule takes, and of what it saves, in one unit; in hours for files."""
    seconds = [each.comparison.seconds.value for each in entries if each.comparison is not None]
    known = [value for value in seconds if value is not None]
    if not known:
        return []
    unit, length = time_unit(known)
    return [
        quantity(key, heading, f"comparison.{name}", times=1 / per)
        for name, words in (("seconds", "time"), ("seconds_saved", "time saved"))
        for key, heading, per in ((name.replace("seconds", "hours"), "", HOUR), ("", f"{words} ({unit})", length))
    ]


@presentation.register
def _(result: ScheduleLosses) -> Presentation:
    tables = {"schedule_losses": losses(result)}
    edges = [
        f"{each.optimizer}, {each.schedule}: best learning rate at the edge of the grid, one beyond may be better"
        for each in result.entries
        if each.at_grid_edge
    ]
    return Presentation(
        shown=[tables["schedule_losses"], *dict.fromkeys(edges), *result.notes], tables=tables,
        json="schedule_losses.json",
    )  # fmt: skip


def percent_or_dash(part: float | None) -> str:
    """Format a fraction that may be negative, or a dash."""
    return DASH if part is None else f"{100 * part:.3g} %"


def losses(result: ScheduleLosses) -> Table:
    """Return a table with one row per optimizer, schedule and first batch size."""

    rows = [(entry, difference) for entry in result.entries for difference in entry.against or (None,)]

    columns = (
        *files("sweep"),
        Column("optimizer", heading="optimizer", name=True),
        Column("schedule", heading="schedule", name=True),
        Column("batch_size", heading="from B", name=True),
        quantity("metric", "metric", signed=True, wide=True),
        Column("constant_batch_size", lambda _, other: other and other.batch_size, "against B"),
        Column("difference", "value", "difference", "interval", signed=True),
        Column("probability_smaller", heading="probability below 0", text=share, wide=True),
        Column("steps", heading="steps", wide=True),
        Column("steps_saved", heading="steps saved", text=percent_or_dash),
        *files("examples", "best_lr", "at_grid_edge", "seeds"),
    )  # fmt: skip
    title = f"Final metric at equal examples [{percent(result.config.confidence)} % interval]"
    return Table(columns=columns, rows=rows, title=title)
