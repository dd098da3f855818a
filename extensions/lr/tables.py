"""Presentation of ``cbs lr``: what it writes and prints."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from analysis.estimate.learning_rate_law import LEAST, Factor, Trend
from analysis.estimate.result import Answer
from analysis.formatting import DASH, number, percent, plural
from analysis.present import Presentation, presentation
from analysis.present.answers import about, titled, tuned_columns
from analysis.present.sentences import home
from analysis.present.table import Column, Table, quantity
from cbs.trial.config import COMMAND
from extensions.lr.learning_rates import LearningRate, LearningRates, Protocol

FEW = 2  # Largest number of commands of a protocol that are printed; the file of missing trials has all

# Batch sizes that are shown unless everything is; of more than MANY optimizers half of them: a row stays one line
MOST = 4
MANY = 3

_NEEDED = (
    f"a law needs {LEAST} batch sizes whose best learning rate lies inside the grid: try more learning rates, as a "
    "sweep with --batch-sizes does"
)


@presentation.register
def _(learning_rates: LearningRates) -> Presentation:
    tables = {
        "best_learning_rates": optima(learning_rates.entries),
        "learning_rate_laws": laws(learning_rates.entries),
        "learning_rate_factors": factors(learning_rates.entries),
        "protocols": protocols(learning_rates),
    }
    missing = tables["missing_trials"] = missing_trials(learning_rates.entries)

    said = f"[{percent(learning_rates.config.confidence)} % interval]"
    scopes: dict[tuple[str, str, str], list[LearningRate]] = {}
    for entry in learning_rates.entries:
        group = entry.answer.group
        scopes.setdefault((group.sweep, group.workload, str(entry.answer.target)), []).append(entry)
    folder = home([entry.answer for entry in learning_rates.entries])
    return Presentation(
        shown=[*(at_a_glance(entries, said) for entries in scopes.values()), *learning_rates.notes],
        wide=[*(table for table in tables.values() if table is not missing), *_to_run(learning_rates.entries)],
        then=[next_command(folder, learning_rates)] if folder else (),
        tables=tables,
        latex=("learning_rate_laws", "protocols"),
        json="learning_rates.json",
    )


def _about(entries: Iterable[LearningRate]) -> tuple[Column, ...]:
    columns = {column.key: column for column in about([entry.answer for entry in entries])}
    return tuple(columns[key] for key in ("sweep", "workload", "target", "", "metric", "optimizer"))


def next_command(folder: str, learning_rates: LearningRates) -> str:
    """Return the command for what comes next: the batch sizes where learning rates were ranked by final losses, step
    times where this program trains and code of one's own may run, else a choice by a table; where no learning rate is
    best, what is missing."""
    if not any(entry.law.optima for entry in learning_rates.entries):
        return f"cbs analyze {folder}"
    if not any(entry.protocols for entry in learning_rates.entries):
        return f"cbs budget {folder}"
    groups = [entry.answer.group for entry in learning_rates.entries]
    names = [name for group in groups for name in (group.workload.partition("(")[0], group.choice.name)]
    if COMMAND in names or any("imported" in group.manifest for group in groups):
        return f"cbs recommend {folder} --throughput 'assumed(examples_per_second_per_device=X)'"
    return " ".join([f"cbs throughput {folder}", *(f"--code {name}" for name in dict.fromkeys(names) if ":" in name)])


def at_a_glance(entries: Sequence[LearningRate], said: str) -> Table:
    """Return a table with one row per optimizer of one sweep and target: the best learning rates at no more than
    :data:`MOST` batch sizes, the power they follow, and the factor for twice the batch."""
    sizes = sorted({best.batch_size for entry in entries for best in entry.law.optima})
    most = MOST // 2 if len(entries) > MANY else MOST
    shown = sorted({sizes[round(index)] for index in np.linspace(0, len(sizes) - 1, min(most, len(sizes)))})

    def at(size: int) -> Column:
        def best_lr(entry: LearningRate) -> str:
            found = next((best for best in entry.law.optima if best.batch_size == size), None)
            return DASH if found is None else f"{number(found.lr)}{'*' if found.at_grid_edge else ''}"

        return Column("", best_lr, f"B = {size:g}")

    def twice(entry: LearningRate) -> Factor | None:
        return next(iter(entry.factors), None)

    columns = (
        Column("", "answer.group.optimizer", "optimizer", name=True),
        *map(at, shown),
        quantity("", "power of B", "law.slope"),
        Column(
            "", lambda entry: getattr(twice(entry), "value", None), "twice B",
            lambda entry: getattr(twice(entry), "interval", None),
        ),
    )  # fmt: skip
    trends: dict[str, list[str]] = {}
    for entry in entries:
        trends.setdefault(entry.law.trend, []).append(entry.answer.group.optimizer)
    lines = [f"{', '.join(names)}: {trend}" for trend, names in trends.items()]
    if Trend.UNKNOWN in trends:
        lines.append(_NEEDED)
    starts: dict[str, list[str]] = {}
    for entry in entries:
        if factor := twice(entry):
            starts.setdefault(number(factor.batch_size), []).append(entry.answer.group.optimizer)
    if starts:
        places = [f"{start} ({', '.join(names)})" if len(starts) > 1 else start for start, names in starts.items()]
        lines.append(f"twice B: factor on the learning rate when the batch size doubles, from {', '.join(places)}")
    if any(best.at_grid_edge and best.batch_size in shown for entry in entries for best in entry.law.optima):
        lines.append("*: the lowest or highest that was tried, a better one may lie beyond")
    return Table(
        columns=columns, rows=entries, title=f"Best learning rate{titled([entries[0].answer])} {said}", lines=lines
    )


def optima(entries: Sequence[LearningRate]) -> Table:
    """Return a table with one row per optimizer and batch size."""
    rows = [(best, entry.answer) for entry in entries for best in entry.law.optima]
    bound = any(best.at_grid_edge for best, _ in rows)

    columns = (
        *_about(entries),
        Column("batch_size", heading="batch size", name=True),
        Column("lr", heading="best learning rate", interval="interval", text=number),
        Column("at_grid_edge", heading="at an edge" if bound else ""),
        *tuned_columns([entry.answer for entry in entries]),
    )
    lines = ["at an edge of the grid only a bound is known, and the law leaves it out"] if bound else []
    return Table(columns=columns, rows=rows, title="Best learning rate, between the points of the grid", lines=lines)


def laws(entries: Sequence[LearningRate]) -> Table:
    """Return a table with one row per optimizer."""
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
        *(quantity(name, heading) for name, heading in names.items()),
        Column("scatter"),
    )
    rows = [(entry.law, entry.answer) for entry in entries]
    few = any(entry.law.trend is Trend.UNKNOWN for entry in entries)
    lines = [_NEEDED] if few else []
    return Table(columns=columns, rows=rows, title="lr(B) = lr_max / (1 + B_n/B)^alpha", lines=lines)


def factors(entries: Sequence[LearningRate]) -> Table:
    """Return a table with one row per optimizer, start and multiple."""
    rows = [(factor, entry.answer) for entry in entries for factor in entry.factors]
    columns = (
        *_about(entries),
        Column("batch_size", heading="from batch size", name=True),
        Column("multiple", heading="batch times", text="{:g}".format),
        Column("factor", "value", "learning rate times", "interval"),
        Column("square_root", heading="square root inside"),
        Column("linear", heading="linear inside"),
        Column("extrapolated", heading="beyond what was measured"),
    )
    title = "Factor on the learning rate for a larger batch, and whether the rules lie inside its interval"
    return Table(columns=columns, rows=rows, title=title)


def protocols(learning_rates: LearningRates) -> Table:
    """Return a table with one row per optimizer and way to choose the learning rate."""
    rows = [(protocol, entry, protocol.answer) for entry in learning_rates.entries for protocol in entry.protocols]

    def reached(_: Protocol, __: LearningRate, answer: Answer) -> int:
        return sum(point.reached for point in answer.points)

    columns = (
        *_about(learning_rates.entries),
        Column("protocol", "name", "learning rate", name=True),
        Column("reference_batch_size", "reference"),
        quantity("critical_batch_size", "critical batch size"),
        quantity("examples_at_critical", "examples there"),
        Column("batch_sizes_reached", reached),
        Column("batch_sizes_run", lambda *row: len(row[-1].points)),
        Column("batch_sizes", lambda *row: len(row[1].answer.points)),
        Column("", lambda *row: f"{reached(*row)} of {len(row[-1].points)}", "reached"),
        Column("verdict", heading="verdict", text=str, left=True),
        Column("advice"),
    )
    title = f"Critical batch size ({learning_rates.config.definition}) by the way the learning rate is chosen"
    lines = ["reached: at how many batch sizes, of those at which the learning rate was run"] if rows else []
    if any(protocol.not_run for entry in learning_rates.entries for protocol in entry.protocols):
        lines.append(
            "no critical batch size if some batch sizes are missing: those that were run suit the learning rates best"
        )
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def missing_trials(entries: Sequence[LearningRate]) -> Table:
    """Return a table with one row per learning rate of a protocol that was not run."""
    rows = [
        (cells, protocol, entry.answer)
        for entry in entries
        for protocol in entry.protocols
        for cells in protocol.missing
    ]
    columns = (
        *_about(entries),
        Column("protocol", "name"),
        Column("lr"),
        Column("batch_sizes", lambda *row: ", ".join(map(str, row[0].batch_sizes))),
        Column("seeds", lambda *row: ", ".join(map(str, row[0].seeds))),
        Column("command"),
    )
    return Table(columns=columns, rows=rows)


def _to_run(entries: Sequence[LearningRate]) -> Iterator[str]:
    """Yield the trials that every protocol lacks, and the commands that run them if there are few, each once."""
    lacking = [(protocol, entry.answer) for entry in entries for protocol in entry.protocols if protocol.missing]
    shown: set[str] = set()
    if lacking:
        yield "not run (every command in missing_trials.csv):"
    for protocol, answer in lacking:
        trials = sum(len(cells.batch_sizes) * len(cells.seeds) for cells in protocol.missing)
        sizes = sorted({size for cells in protocol.missing for size in cells.batch_sizes})
        where = f"batch size {', '.join(map(str, sizes))}"
        yield f"{answer.group.optimizer}, {protocol.name}: {plural(trials, 'trial')} at {where}"
        commands = {cells.command for cells in protocol.missing} - shown if len(protocol.missing) <= FEW else set()
        yield from sorted(f"  {command}" for command in commands if command)
        shown |= commands
