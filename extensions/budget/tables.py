"""Presentation of ``cbs budget``: what it writes and prints."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from analysis.formatting import number, percent, share, with_interval
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, quantity
from analysis.quantities import Quantity
from extensions.budget.equal_budgets import AtBudget, Budgets, OptimizerAtBudget


@presentation.register
def _(result: Budgets) -> Presentation:
    makers = (equivalence, losses, other_metrics, doublings, differences, overtaking, learning_rates)
    tables = {make.__name__: make(result) for make in makers}
    if not tables["other_metrics"].rows:
        del tables["other_metrics"]
    several = any(scope.pairs for scope in result.budgets)
    first = ("equivalence", "overtaking") if several else ("equivalence",)
    more = [name for name in tables if name not in (*first, "learning_rates") and (several or name != "differences")]
    return Presentation(
        shown=[
            *(tables[name] for name in first),
            f"every interval {percent(result.config.confidence)} %",
            *result.notes,
        ],
        wide=[tables[name] for name in more if name != "overtaking"],
        tables=tables,
        latex=[name for name in ("equivalence", "losses", "other_metrics", "learning_rates") if name in tables],
        json="budget.json",
    )


def _entries(result: Budgets) -> Iterator[tuple[OptimizerAtBudget, AtBudget]]:
    return ((entry, scope) for scope in result.budgets for entry in scope.optimizers)


def _about(result: Budgets) -> tuple[Column, ...]:
    """Return the columns that identify rows; those whose values differ are displayed."""
    workloads = {scope.workload for scope in result.budgets}
    units = {f"{scope.example_unit}s" for scope in result.budgets}
    unit = units.pop() if len(units) == 1 else "examples"
    several = len({scope.budget for scope in result.budgets}) > 1
    return (
        Column("workload", heading="workload" if len(workloads) > 1 else "", name=True),
        Column("optimizer", heading="optimizer", name=True),
        Column("budget", heading=f"budget ({unit})" if several else "", name=True, text=number),
    )


def _metric(result: Budgets) -> str:
    """Return the name of the metric with its unit, if there is only one."""
    units = {scope.metric: f" ({scope.metric_unit})" if scope.metric_unit else "" for scope in result.budgets}
    said = {f"{metric.replace('_', ' ')}{unit}" for metric, unit in units.items()}
    return said.pop() if len(said) == 1 else "metric"


def _title(result: Budgets, what: str) -> str:
    titles = {scope.title for scope in result.budgets}
    return f"{what} at {titles.pop()}" if len(titles) == 1 else what


def equivalence(result: Budgets) -> Table:
    """Return a table with one row per optimizer and budget."""
    margins = {f"{number(scope.margin)} {scope.metric_unit}".strip() for scope in result.budgets}
    margin = margins.pop() if len(margins) == 1 else "the margin"
    columns = (
        *_about(result),
        quantity("best_batch_size", "best B", "equivalence.best"),
        quantity("largest_within", "largest B within", "equivalence.largest_within"),
        Column("largest_equal", "equivalence.largest_equal", "equal up to"),
        Column("smallest_worse", "equivalence.smallest_worse", "worse from"),
        Column("margin"),
        Column("verdict", heading="verdict", left=True),
        Column("advice"),
    )
    rows = list(_entries(result))
    advice: dict[str, list[str]] = {}
    for entry, scope in rows:
        if entry.advice:
            advice.setdefault(f"{entry.verdict}: {entry.advice}", []).append(_whose(result, entry, scope))
    lines = [f"{', '.join(whose)}: {text}" for text, whose in advice.items()]
    lines += [f"{_whose(result, entry, scope)}: {entry.standing}" for entry, scope in rows]
    title = _title(result, f"Up to which batch size the loss is within {margin} of the best")
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def _whose(result: Budgets, entry: OptimizerAtBudget, scope: AtBudget) -> str:
    return f"{entry.optimizer} at {scope.title}" if len(result.budgets) > 1 else entry.optimizer


def precise(value: Quantity) -> str:
    """Format a value with its interval, to two digits of the half-width; if the interval is half open, with its end."""
    low, high = value.interval
    if value.value is not None and (low is None) != (high is None):
        side, end = ("at most", high) if low is None else ("at least", low)
        return f"{number(value.value, 4)}, {side} {number(end, 4)}"
    if value.value is None or low is None or high is None or not high > low:
        return with_interval(value.value, value.interval)
    decimals = max(0, 1 - math.floor(math.log10((high - low) / 2)))
    return f"{value.value:.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"


def losses(result: Budgets) -> Table:
    """Return a table with one row per optimizer, budget and batch size."""
    rows = [(size, entry, scope) for entry, scope in _entries(result) for size in entry.sizes]
    edges = any(size.at_grid_edge for size, *_ in rows)
    columns = (
        *_about(result),
        Column("batch_size", heading="B", name=True),
        Column("steps", heading="steps", text=lambda steps: f"{steps:,}"),
        Column("metric", lambda _, __, scope: scope.metric),
        quantity("value", of="metric"),
        Column("", lambda size, *_: precise(size.metric), _metric(result)),
        Column("best_lr", heading="best learning rate", text=number),
        Column("at_grid_edge", heading="at an edge" if edges else ""),
        Column("seeds", heading="seeds"),
        Column("excess", "excess.value", "above the best", "excess.interval"),
        Column("standing", "excess.standing", "standing", left=True),
        Column("more_seeds", "excess.more_seeds"),
        Column("basin_width", "basin", "basin of rates"),
        Column("between", "between"),
    )
    title = _title(result, "Final metric at the best learning rate")
    lines = ["basin of rates: the highest learning rate within the margin of its batch size's best over the lowest"]
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def other_metrics(result: Budgets) -> Table:
    """Return a table with one row per optimizer, budget and batch size, and a column for every further metric that was
    recorded, such as the top eigenvalue and the trace of the Hessian; no rows without any."""
    rows = [(size, entry, scope) for entry, scope in _entries(result) for size in entry.sizes if size.others]
    names = list(dict.fromkeys(name for size, *_ in rows for name in size.others))
    columns = (
        *_about(result),
        Column("batch_size", heading="B", name=True),
        Column("best_lr", heading="best learning rate", text=number),
        *(quantity(name, name.replace("_", " "), f"others.{name}", signed=True) for name in names),
    )
    return Table(columns=columns, rows=rows, title=_title(result, f"Other metrics where {_metric(result)} is best"))


def doublings(result: Budgets) -> Table:
    """Return a table with one row per optimizer, budget and pair of neighbouring batch sizes."""
    rows = [(each, entry, scope) for entry, scope in _entries(result) for each in entry.doublings]
    columns = (
        *_about(result),
        Column("batch_size", heading="from B", name=True),
        Column("larger", heading="to B", name=True),
        quantity("loss", "worse by"),
        quantity("data_share", "data it costs (%)", "data", times=100.0),
        quantity("steps_ratio", "steps saved, times", "steps"),
        Column("remark"),
    )
    remarks = dict.fromkeys(f"{entry.optimizer}: {each.remark}" for each, entry, _ in rows if each.remark)
    lines = [
        "data it costs: with so much less the smaller batch is as good; steps saved: of the smaller for one of the "
        "larger, at the same loss",
        *remarks,
    ]
    return Table(columns=columns, rows=rows, title=_title(result, "What the next batch size costs"), lines=lines)


def differences(result: Budgets) -> Table:
    """Return a table with one row per pair of optimizers, budget and batch size."""
    rows = [(at, pair, scope) for scope in result.budgets for pair in scope.pairs for at in pair.at]
    columns = (
        *_pair_columns(result),
        Column("batch_size", heading="B", name=True),
        Column("difference", "value", "difference", "interval", signed=True),
        Column("probability_other_better", "probability", "P(second better)", text=share),
    )
    return Table(columns=columns, rows=rows, title=_title(result, "First optimizer's loss less the second's"))


def overtaking(result: Budgets) -> Table:
    """Return a table with one row per pair of optimizers and budget for which one overtakes the other."""
    rows = [(pair, scope) for scope in result.budgets for pair in scope.pairs if pair.overtaker]
    columns = (
        *_pair_columns(result),
        quantity("overtakes", "from B on"),
        Column("overtaker", heading="better", left=True),
    )
    return Table(columns=columns, rows=rows, title=_title(result, "Where one optimizer overtakes another"))


def _pair_columns(result: Budgets) -> tuple[Column, ...]:
    about: dict[str, Any] = {column.key: column for column in _about(result)}
    return (
        about["workload"],
        Column("optimizer", heading="first", name=True),
        Column("other", heading="second", name=True),
        about["budget"],
    )


def learning_rates(result: Budgets) -> Table:
    """Return a table with one row per optimizer, budget, batch size and learning rate."""
    rows: Sequence[Any] = [
        ({"lr": lr, "value": value, "best": lr == size.best_lr}, size, entry, scope)
        for entry, scope in _entries(result)
        for size in entry.sizes
        for lr, value in size.grid
    ]
    columns = (
        *_about(result),
        Column("batch_size", heading="B", name=True),
        Column("lr", heading="learning rate", text=number),
        Column("warmup_steps", lambda _, size, *__: size.warmup, "warmup (steps)", text=number),
        Column("steps", heading="steps", text=lambda steps: f"{steps:,}"),
        Column("value", heading=_metric(result), text=lambda value: number(value, 5)),
        Column("best", heading="best"),
    )
    return Table(columns=columns, rows=rows, title=_title(result, "Every learning rate"))
