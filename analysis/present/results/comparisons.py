"""What ``cbs compare`` writes and prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from analysis.phrases import share, time_unit
from analysis.present import Presentation, presentation
from analysis.present.numbers import DASH, number, percent
from analysis.present.table import Column, Table, pivot
from analysis.questions.comparison import TokenRatio
from analysis.questions.comparison.result import Comparison, Comparisons

_SCOPE = tuple(Column(name) for name in ("sweep", "workload", "metric", "target"))


@presentation.register
def _(found: Comparisons) -> Presentation:
    said = f"[{percent(found.config.confidence)} % interval]"
    shown: list[Table | str] = []
    for comparison in found.comparisons:
        shown += [*_shown(comparison, said), *comparison.notes]
    shown += [*([found.throughput.statement] if found.throughput else []), *found.notes]
    tables = {"token_ratios": ratios(found.comparisons), "critical_batch_sizes": pairs(found.comparisons)}
    if found.throughput:
        tables["compute_time"] = plane(found.comparisons)

    return Presentation(shown=shown, tables=tables, json="comparison.json")


def _shown(comparison: Comparison, said: str) -> list[Table]:
    """The tables of one comparison that have something to show."""
    found = []
    table = ratios([comparison])
    if table.rows:
        side_by_side = pivot(
            table.rows, Column("", "batch_size", "batch size"), "optimizer", "token_ratio", "token_ratio_interval"
        )
        title = f"Token ratio, {comparison.title}: examples {comparison.reference} needs over those of the other {said}"
        found.append(replace(side_by_side, title=title, lines=[rising(ratio) for ratio in comparison.token_ratios]))
    table = pairs([comparison])
    kept = [row for row in table.rows if row["probability_larger"] is not None]
    if kept:
        title = f"Critical batch size ({comparison.answers[0].definition}), {comparison.title}: probability that it is "
        title += f"larger than that of the other optimizer, and the ratio of the two {said}"
        found.append(replace(table, rows=kept, title=title))
    table = plane([comparison])
    kept = [row for row in table.rows if row["on_frontier"]]
    if kept:
        found.append(replace(table, rows=kept, title=f"Least time, {comparison.title} {said}"))
    return found


def ratios(comparisons: Sequence[Comparison]) -> Table:
    """One row per optimizer and batch size."""
    rows = [
        comparison.scope
        | {"reference": ratio.reference, "optimizer": ratio.optimizer, "batch_size": at.batch_size}
        | {"token_ratio": at.value, "token_ratio_interval": at.interval}
        for comparison in comparisons
        for ratio in comparison.token_ratios
        for at in ratio.at
    ]
    columns = (
        *_SCOPE,
        *(Column(name) for name in ("reference", "optimizer", "batch_size")),
        Column("token_ratio", interval="token_ratio_interval"),
    )
    return Table(columns=columns, rows=rows)


def pairs(comparisons: Sequence[Comparison]) -> Table:
    """One row per ordered pair of optimizers."""
    rows = [
        comparison.scope
        | {"optimizer": pair.larger, "other": pair.smaller, "probability_larger": pair.probability}
        | {"ratio": pair.ratio, "ratio_interval": pair.interval}
        for comparison in comparisons
        for pair in comparison.critical_batch_sizes
    ]
    columns = (
        *_SCOPE,
        Column("optimizer", None, "optimizer", name=True),
        Column("other", None, "other", name=True),
        Column("probability_larger", None, "probability", text=lambda value: DASH if value is None else share(value)),
        Column("ratio", None, "ratio", "ratio_interval"),
    )
    return Table(columns=columns, rows=rows)


def plane(comparisons: Sequence[Comparison]) -> Table:
    """One row per optimizer, number of devices and batch size."""
    rows = [comparison.scope | point for comparison in comparisons for point in comparison.compute_time]
    unit, length = time_unit(row["seconds"] for row in rows if row["on_frontier"])

    def ends(row: dict[str, float | None]) -> tuple[float | None, ...]:
        return tuple(None if end is None else end / length for end in (row["seconds_low"], row["seconds_high"]))

    columns = (
        *_SCOPE,
        Column("devices", None, "devices", name=True),
        Column("optimizer", None, "optimizer", name=True),
        Column("batch_size", None, "batch size"),
        Column("", lambda row: row["seconds"] / length, f"time ({unit})", ends),
        *(Column(name) for name in ("steps", "seconds", "seconds_low", "seconds_high", "on_frontier", "assumption")),
    )
    return Table(columns=columns, rows=rows)


def rising(ratio: TokenRatio) -> str:
    """Whether the token ratio decreases with the batch size, in a sentence."""
    curves, points = ratio.probability_not_decreasing, ratio.probability_slope_not_negative
    if curves is None or points is None:
        return f"{ratio.optimizer}: too few batch sizes to say whether the ratio decreases with the batch size"
    low, high = ratio.slope.interval
    return (
        f"{ratio.optimizer}: the ratio does not decrease with the batch size with probability {share(curves)} by "
        f"the fitted curves, {share(points)} by the measured points (slope of ln ratio over ln batch size "
        f"{number(ratio.slope.value)} [{number(low)}, {number(high)}])"
    )
