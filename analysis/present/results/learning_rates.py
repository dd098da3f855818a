"""What ``cbs lr`` writes and prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from analysis.estimate.laws.learning_rate import LEAST, Trend
from analysis.plain import shown
from analysis.present import Presentation, presentation
from analysis.present.numbers import number, percent
from analysis.present.table import Column, Table
from analysis.questions.learning_rate import LearningRate, LearningRates
from analysis.questions.scopes import scope_columns


@presentation.register
def _(found: LearningRates) -> Presentation:
    tables = {
        "best_learning_rates": optima(found.entries),
        "learning_rate_laws": laws(found.entries),
        "learning_rate_factors": factors(found.entries),
        "protocols": protocols(found),
    }
    missing = tables["missing_trials"] = missing_trials(found.entries)

    said = f"every interval {percent(found.config.confidence)} %"
    return Presentation(
        shown=[*(table for table in tables.values() if table is not missing), *_to_run(missing), said, *found.notes],
        tables=tables,
        latex=("learning_rate_laws", "protocols"),
        json="learning_rates.json",
    )


def _about(entries: Iterable[LearningRate]) -> tuple[Column, ...]:
    """What tells rows apart; people see what differs."""
    rows = [_scope(entry) for entry in entries]
    shown = {name: name if len({row[name] for row in rows}) > 1 else "" for name in ("sweep", "workload", "target")}
    columns = [Column(name, heading=heading, name=True) for name, heading in shown.items()]
    return (*columns, Column("metric"), Column("optimizer", heading="optimizer", name=True))


def _scope(entry: LearningRate) -> dict[str, Any]:
    return scope_columns(entry.answer) | {"optimizer": entry.answer.group.optimizer}


def optima(entries: Sequence[LearningRate]) -> Table:
    """One row per optimizer and batch size."""
    rows = [_scope(entry) | best for entry in entries for best in entry.law.best]
    bound = any(row["at_grid_edge"] for row in rows)
    columns = (
        *_about(entries),
        Column("batch_size", heading="batch size", name=True),
        Column("lr", None, "best learning rate", "interval", text=lambda lr: number(lr)),
        Column("at_grid_edge", heading="at an edge" if bound else ""),
    )
    lines = ["at an edge of the grid only a bound is known, and the law does without it"] if bound else []
    return Table(columns=columns, rows=rows, title="Best learning rate, between the points of the grid", lines=lines)


def laws(entries: Sequence[LearningRate]) -> Table:
    """One row per optimizer."""
    names = {
        "slope": "slope of ln lr over ln B",
        "first_slope": "slope at the smallest B",
        "max_lr": "lr_max",
        "noise_batch_size": "B_n",
        "alpha": "alpha",
    }
    columns = (
        *_about(entries),
        Column("trend", heading="best learning rate", left=True),
        *(Column(name, f"{name}.value", heading, f"{name}.interval") for name, heading in names.items()),
        Column("scatter"),
    )
    rows = [_scope(entry) | entry.law.to_json() for entry in entries]
    few = any(entry.law.trend is Trend.UNKNOWN for entry in entries)
    lines = [f"a law needs {LEAST} batch sizes whose best learning rate lies inside the grid"] if few else []
    return Table(columns=columns, rows=rows, title="lr(B) = lr_max / (1 + B_n/B)^alpha", lines=lines)


def factors(entries: Sequence[LearningRate]) -> Table:
    """One row per optimizer, start and multiple."""
    rows = [_scope(entry) | shown(factor) for entry in entries for factor in entry.factors]
    columns = (
        *_about(entries),
        Column("batch_size", heading="from batch size", name=True),
        Column("multiple", None, "batch times", text=lambda multiple: f"{multiple:g}"),
        Column("factor", "value", "learning rate times", "interval"),
        Column("square_root", heading="square root inside"),
        Column("linear", heading="linear inside"),
        Column("extrapolated", heading="beyond what was measured"),
    )
    title = "Factor on the learning rate for a larger batch, and whether the rules lie inside its interval"
    return Table(columns=columns, rows=rows, title=title if rows else "")


def protocols(found: LearningRates) -> Table:
    """One row per optimizer and way to choose the learning rate."""
    rows = [
        _scope(entry)
        | protocol.to_json()
        | {"reached": sum(point.reached for point in protocol.answer.points)}
        | {"run": len(protocol.answer.points), "of": len(entry.answer.points)}
        for entry in found.entries
        for protocol in entry.protocols
    ]
    examples = "examples_at_critical"
    columns = (
        *_about(found.entries),
        Column("protocol", "name", "learning rate", name=True),
        Column("reference_batch_size", "reference"),
        Column("critical_batch_size", None, "critical batch size", "interval"),
        Column(examples, None, "examples there", f"{examples}_interval"),
        Column("batch_sizes_reached", "reached"),
        Column("batch_sizes_run", "run"),
        Column("batch_sizes", "of"),
        Column("", lambda row: f"{row['reached']} of {row['run']}", "reached"),
        Column("verdict", heading="verdict", left=True),
        Column("advice"),
    )
    title = f"Critical batch size ({found.config.definition}) by the way the learning rate is chosen"
    lines = ["reached: at how many batch sizes, of those at which the learning rate was run"]
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def missing_trials(entries: Sequence[LearningRate]) -> Table:
    """One row per learning rate of a protocol that was not run."""
    rows = [
        _scope(entry)
        | {"protocol": protocol.name, "lr": cells.lr, "command": cells.command}
        | {"batch_sizes": ", ".join(map(str, cells.batch_sizes)), "seeds": ", ".join(map(str, cells.seeds))}
        for entry in entries
        for protocol in entry.protocols
        for cells in protocol.missing
    ]
    columns = (*_about(entries), *(Column(name) for name in ("protocol", "lr", "batch_sizes", "seeds", "command")))
    return Table(columns=columns, rows=rows)


def _to_run(missing: Table) -> Iterator[str]:
    """Every command once, to be copied."""
    found: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for row in missing.rows:
        found.setdefault((row["optimizer"], str(row["lr"]), row["batch_sizes"], row["seeds"], row["command"]), row)
    if found:
        yield "not run, and left out of the protocols that want them:"
    for row in found.values():
        cells = f"batch size {row['batch_sizes']}, learning rate {number(row['lr'])}, seed {row['seeds']}"
        yield f"{row['optimizer']}, {row['protocol']}: {cells}"
        if row["command"]:
            yield f"  {row['command']}"
