"""What ``cbs lr`` writes and prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from analysis.estimate.laws.learning_rate import LEAST, Trend
from analysis.present import Presentation, presentation
from analysis.present.numbers import number, percent
from analysis.present.table import Column, Table
from analysis.questions.learning_rate import LearningRate, LearningRates


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
    group, target = entry.answer.group, entry.answer.target
    return {
        "sweep": group.sweep,
        "workload": group.workload,
        "metric": target.metric,
        "target": target.value,
        "optimizer": group.optimizer,
    }


def optima(entries: Sequence[LearningRate]) -> Table:
    """One row per optimizer and batch size."""
    rows = [
        _scope(entry) | {"batch_size": at.batch_size, "lr": at.lr, "interval": at.interval(half), "edge": at.edge}
        for entry in entries
        for at, half in zip(entry.law.optima, entry.law.half_widths, strict=True)
    ]
    columns = (
        *_about(entries),
        Column("batch_size", heading="batch size", name=True),
        Column("lr", None, "best learning rate", "interval", text=lambda lr: number(lr)),
        Column("at_grid_edge", lambda row: row["edge"] != 0, "at an edge" if any(row["edge"] for row in rows) else ""),
    )
    lines = ["at an edge of the grid only a bound is known, and the law does without it"] if columns[-1].heading else []
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
    rows = [
        _scope(entry)
        | {"trend": str(entry.law.trend), "scatter": entry.law.scatter}
        | {name: asdict(getattr(entry.law, name)) for name in names}
        for entry in entries
    ]

    def column(name: str, heading: str) -> Column:
        return Column(name, lambda row: row[name]["value"], heading, lambda row: row[name]["interval"])

    columns = (
        *_about(entries),
        Column("trend", heading="best learning rate", left=True),
        *(column(name, heading) for name, heading in names.items()),
        Column("scatter"),
    )
    few = any(entry.law.trend is Trend.UNKNOWN for entry in entries)
    lines = [f"a law needs {LEAST} batch sizes whose best learning rate lies inside the grid"] if few else []
    return Table(columns=columns, rows=rows, title="lr(B) = lr_max / (1 + B_n/B)^alpha", lines=lines)


def factors(entries: Sequence[LearningRate]) -> Table:
    """One row per optimizer, start and multiple."""
    rows = [_scope(entry) | asdict(factor) for entry in entries for factor in entry.factors]
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
    rows = []
    for entry in found.entries:
        for protocol in entry.protocols:
            answer = protocol.answer
            reached = [point.batch_size for point in answer.points if point.reached]
            rows.append(
                _scope(entry)
                | {"protocol": protocol.name, "reference": protocol.reference, "verdict": str(answer.verdict)}
                | {"critical_batch_size": answer.critical_batch_size, "interval": answer.interval}
                | {"examples": answer.examples_at_critical, "examples_interval": answer.examples_at_critical_interval}
                | {"reached": len(reached), "run": len(answer.points), "of": len(entry.answer.points)}
                | {"advice": answer.advice}
            )
    columns = (
        *_about(found.entries),
        Column("protocol", heading="learning rate", name=True),
        Column("reference_batch_size", "reference"),
        Column("critical_batch_size", None, "critical batch size", "interval"),
        Column("examples_at_critical", "examples", "examples there", "examples_interval"),
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
