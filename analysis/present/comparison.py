"""One call from a folder of results to optimizers side by side: numbers, JSON, files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer, answers, scopes
from analysis.files import in_one_piece
from analysis.phrases import literal, share, time_unit
from analysis.present.tables import number, with_interval
from analysis.questions.comparison import CriticalPair, TokenRatio, critical_pair, named, pick_reference, token_ratio
from analysis.questions.comparison.frontier import PlanePoint, plane
from analysis.read.results import load
from analysis.read.throughput import Throughput
from cbs.errors import ConfigError
from cbs.target import Target

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA_VERSION = 1
"""Raised when a key of the JSON report changes its name, unit or meaning."""

REPORT = "comparison.json"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The optimizers of one sweep, workload and target.

    Attributes:
        title: what tells it from the other comparisons.
        answers: one per optimizer.
        reference: the optimizer in the numerator of the token ratios.
        ratios: one per other optimizer.
        pairs: every ordered pair of optimizers.
        points: the compute-time plane of all optimizers; empty without a throughput.
        notes: verdicts, and what could not be compared.
    """

    title: str
    answers: tuple[Answer, ...]
    reference: str
    ratios: tuple[TokenRatio, ...]
    pairs: tuple[CriticalPair, ...]
    points: tuple[PlanePoint, ...]
    notes: tuple[str, ...]

    @property
    def scope(self) -> dict[str, Any]:
        """Columns that every table begins with."""
        return scope_columns(self.answers[0])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.scope | {
            "target": self.answers[0].target.to_json(),
            "definition": self.answers[0].definition,
            "optimizers": [answer.group.optimizer for answer in self.answers],
            "reference": self.reference,
            "token_ratios": [ratio.to_json() for ratio in self.ratios],
            "critical_batch_sizes": [pair.to_json() for pair in self.pairs],
            "compute_time": [point.to_json() for point in self.points],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """What :func:`compare` found.

    Attributes:
        output: the folder that was written.
        comparisons: one per sweep, workload and target.
        confidence: level of every interval.
        throughput: where step times come from; empty without.
        notes: what was left out, one line each.
        files: every file written.
    """

    output: Path
    comparisons: tuple[Comparison, ...]
    confidence: float
    throughput: str = ""
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values that :func:`json.dumps` writes with ``allow_nan=False``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "confidence": self.confidence,
            "throughput": self.throughput,
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }

    def print(self, console: Console) -> None:
        """The tables, what has to be said about them, and where the files are."""
        for comparison in self.comparisons:
            for heading, table, lines in _parts(comparison, self.confidence):
                console.print(heading, markup=False, soft_wrap=True)
                console.print(table)
                for line in lines:
                    console.print(line, markup=False, soft_wrap=True)
                console.print()
            for note in comparison.notes:
                console.print(note, markup=False, soft_wrap=True)
        for note in (*([self.throughput] if self.throughput else []), *self.notes):
            console.print(note, markup=False, soft_wrap=True)
        pictures = [path.name for path in self.files if path.suffix == ".png"]
        rest = [path.name for path in self.files if path.parent == self.output]
        console.print(f"in {self.output}: {', '.join(rest)}", markup=False, soft_wrap=True)
        if pictures:
            console.print(f"in {self.output / 'figures'}: {', '.join(pictures)} (also .pdf, .csv)", soft_wrap=True)


def compare(
    path: str | os.PathLike[str],
    *,
    targets: Sequence[float | Target] | None = None,
    reference: str | None = None,
    throughput: Throughput | None = None,
    config: AnalysisConfig | None = None,
    output: str | os.PathLike[str] | None = None,
    figures: bool = True,
) -> ComparisonReport:
    """Token ratios, critical batch sizes and, with step times, the compute-time plane, optimizer beside optimizer.

    Args:
        path: one sweep, or a folder of sweeps; optimizers of one sweep and workload are compared.
        targets: as of :func:`analysis.analyze`.
        reference: the optimizer that the others are compared with; ``None`` takes ``adamw`` where it is there, else the
            first.
        throughput: seconds per step; ``None`` leaves the compute-time plane out.
        config: how the numbers are made.
        output: folder for tables and figures; ``None`` for ``analysis/compare`` in the results.
        figures: whether to draw.

    Raises:
        ConfigError: if the target cannot be used, or no optimizer is called like the reference.
        ResultsError: if the results cannot be read, or the output cannot be written.
    """
    config = config or AnalysisConfig()
    results = load(path)
    found = list(scopes(answers(results, config, targets=targets, noise=False)).values())
    if reference is not None and not any(named(scope, reference) for scope in found):
        names = dict.fromkeys(answer.group.optimizer for scope in found for answer in scope)
        raise ConfigError(f"reference {reference!r} is not among the optimizers: {', '.join(names)}")
    report = ComparisonReport(
        output=Path(path) / "analysis" / "compare" if output is None else Path(output),
        comparisons=tuple(_comparison(scope, reference, throughput, title(scope, found)) for scope in found),
        confidence=config.confidence,
        throughput="" if throughput is None else throughput.statement,
        notes=tuple(results.notes),
    )
    return _write(report, figures=figures)


def scope_columns(answer: Answer) -> dict[str, Any]:
    """What tells the rows of one sweep, workload and target from others in a table."""
    return {
        "sweep": answer.group.sweep,
        "workload": answer.group.workload,
        "metric": answer.target.metric,
        "target": answer.target.value,
    }


def title(scope: Sequence[Answer], scopes: Sequence[Sequence[Answer]]) -> str:
    """The target, after what else tells a scope from the others."""
    group = scope[0].group
    parts = []
    for name in ("sweep", "workload"):
        if len({getattr(other[0].group, name) for other in scopes}) > 1:
            parts.append(str(getattr(group, name)))
    return ", ".join([*parts, str(scope[0].target).replace("_", " ")])


def verdicts(answers: Sequence[Answer]) -> list[str]:
    """What is said against the answers, one line each."""
    return [
        f"{answer.group.optimizer}: {answer.verdict}: {answer.advice}"
        for answer in answers
        if answer.verdict is not Verdict.OK
    ]


def _comparison(
    scope: Sequence[Answer], reference: str | None, throughput: Throughput | None, title: str
) -> Comparison:
    chosen = pick_reference(scope, reference)
    others = [answer for answer in scope if answer is not chosen]
    ratios = [token_ratio(chosen, other) for other in others]
    notes = verdicts(scope)
    if reference is not None and not named(scope, reference):
        notes.append(f"{reference} is not among these optimizers: compared with {chosen.group.optimizer}")
    if not others:
        notes.append(f"{chosen.group.optimizer} is the only optimizer: there is none to compare it with")
    notes += [
        f"{ratio.optimizer}: no batch size that both it and {ratio.reference} reached the target at"
        for ratio in ratios
        if not ratio.at
    ]
    points = [] if throughput is None else [point for answer in scope for point in plane(answer, throughput)]
    if throughput is not None:
        missing = {answer.group.optimizer for answer in scope} - {point.optimizer for point in points}
        notes += [f"{name}: no batch size that reached the target has a step time" for name in sorted(missing)]
        notes += sorted({point.assumption for point in points if point.assumption and point.on_frontier})
    return Comparison(
        title=title,
        answers=tuple(scope),
        reference=chosen.group.optimizer,
        ratios=tuple(ratios),
        pairs=tuple(critical_pair(one, two) for one in scope for two in scope if one is not two),
        points=tuple(points),
        notes=tuple(notes),
    )


def ratio_rows(comparison: Comparison) -> pd.DataFrame:
    """One row per optimizer and batch size."""
    rows = [
        comparison.scope
        | {"reference": ratio.reference, "optimizer": ratio.optimizer, "batch_size": at.batch_size}
        | {"token_ratio": at.value, "token_ratio_low": at.interval[0], "token_ratio_high": at.interval[1]}
        for ratio in comparison.ratios
        for at in ratio.at
    ]
    return pd.DataFrame(rows, columns=[*comparison.scope, *_RATIO_COLUMNS])


def pair_rows(comparison: Comparison) -> pd.DataFrame:
    """One row per ordered pair of optimizers."""
    rows = [
        comparison.scope
        | {"optimizer": pair.larger, "other": pair.smaller, "probability_larger": pair.probability}
        | {"ratio": pair.ratio, "ratio_low": pair.interval[0], "ratio_high": pair.interval[1]}
        for pair in comparison.pairs
    ]
    return pd.DataFrame(rows, columns=[*comparison.scope, *_PAIR_COLUMNS])


_RATIO_COLUMNS = ("reference", "optimizer", "batch_size", "token_ratio", "token_ratio_low", "token_ratio_high")
_PAIR_COLUMNS = ("optimizer", "other", "probability_larger", "ratio", "ratio_low", "ratio_high")


def point_rows(comparison: Comparison) -> pd.DataFrame:
    """One row per optimizer, number of devices and batch size."""
    names = [*comparison.scope, *(field.name for field in fields(PlanePoint))]
    return pd.DataFrame([comparison.scope | point.to_json() for point in comparison.points], columns=names)


def _parts(comparison: Comparison, confidence: float) -> list[tuple[str, Table, list[str]]]:
    """Heading, table and sentences of everything that there is to show."""
    percent, parts = f"[{100 * confidence:g} % interval]", []
    if any(ratio.at for ratio in comparison.ratios):
        heading = f"Token ratio, {comparison.title}: examples {comparison.reference} needs over those of the other"
        parts.append((f"{heading} {percent}", ratio_table(comparison), [rising(ratio) for ratio in comparison.ratios]))
    if any(pair.probability is not None for pair in comparison.pairs):
        heading = f"Critical batch size ({comparison.answers[0].definition}), {comparison.title}: probability that that"
        heading += f" of the row is larger than that of the column; below it their ratio {percent}"
        parts.append((heading, pair_table(comparison), []))
    if comparison.points:
        heading = f"Least time, {comparison.title}, in {_unit(comparison)} @ batch size {percent}"
        parts.append((heading, frontier_table(comparison), []))
    return parts


def ratio_table(comparison: Comparison) -> Table:
    """Batch sizes down, optimizers across."""
    table = _table()
    table.add_column("batch size", justify="right")
    for ratio in comparison.ratios:
        table.add_column(literal(ratio.optimizer), justify="right", no_wrap=True)
    cells = [{at.batch_size: with_interval(at.value, at.interval) for at in ratio.at} for ratio in comparison.ratios]
    for size in sorted({size for column in cells for size in column}):
        table.add_row(str(size), *(literal(column.get(size, "–")) for column in cells))
    return table


def rising(ratio: TokenRatio) -> str:
    """Whether the token ratio decreases with the batch size, in a sentence."""
    if ratio.rises is None or ratio.slope_rises is None:
        return f"{ratio.optimizer}: too few batch sizes to say whether the ratio decreases with the batch size"
    low, high = ratio.slope_interval
    return (
        f"{ratio.optimizer}: the ratio does not decrease with the batch size with probability {share(ratio.rises)} by "
        f"the fitted curves, {share(ratio.slope_rises)} by the measured points (slope of ln ratio over ln batch size "
        f"{number(ratio.slope)} [{number(low)}, {number(high)}])"
    )


def pair_table(comparison: Comparison) -> Table:
    """Optimizers down and across: the probability that the row's critical batch size is the larger, and the ratio."""
    table = _table()
    names = [answer.group.optimizer for answer in comparison.answers]
    found = {(pair.larger, pair.smaller): pair for pair in comparison.pairs}
    table.add_column("")
    for name in names:
        table.add_column(literal(name), justify="right", no_wrap=True)
    for row in names:
        table.add_row(literal(row), *("" if row == column else literal(_pair(found[row, column])) for column in names))
    return table


def frontier_table(comparison: Comparison) -> Table:
    """Devices down, optimizers across: least time and its batch size."""
    kept = [point for point in comparison.points if point.on_frontier]
    length = time_unit(point.seconds for point in kept)[1]
    table = _table()
    table.add_column("devices", justify="right")
    names = list(dict.fromkeys(point.optimizer for point in comparison.points))
    for optimizer in names:
        table.add_column(literal(optimizer), justify="right", no_wrap=True)
    cells = {(point.devices, point.optimizer): point for point in kept}
    for devices in sorted({point.devices for point in kept}):
        row = [cells.get((devices, optimizer)) for optimizer in names]
        table.add_row(str(devices), *("–" if point is None else literal(_time(point, length)) for point in row))
    return table


def _unit(comparison: Comparison) -> str:
    return time_unit(point.seconds for point in comparison.points if point.on_frontier)[0]


def _time(point: PlanePoint, length: float) -> str:
    low, high = (None if end is None else end / length for end in (point.seconds_low, point.seconds_high))
    return f"{with_interval(point.seconds / length, (low, high))} @ {point.batch_size}"


def _pair(pair: CriticalPair) -> str:
    if pair.probability is None:
        return "–"
    low, high = pair.interval
    if pair.ratio is None and low is None and high is None:
        return share(pair.probability)
    return f"{share(pair.probability)}\n{with_interval(pair.ratio, pair.interval)}"


def _table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def _write(report: ComparisonReport, *, figures: bool) -> ComparisonReport:
    tables = {
        "token_ratios.csv": [ratio_rows(comparison) for comparison in report.comparisons],
        "critical_batch_sizes.csv": [pair_rows(comparison) for comparison in report.comparisons],
    }
    if report.throughput:
        tables["compute_time.csv"] = [point_rows(comparison) for comparison in report.comparisons]
    with in_one_piece(report.output) as draft:
        for name, parts in tables.items():
            pd.concat([part for part in parts if len(part)] or parts[:1]).to_csv(draft / name, index=False)
        if figures:
            _draw(report, draft)
        names = sorted(str(path.relative_to(draft)) for path in draft.rglob("*") if path.is_file())
        report = replace(report, files=tuple(report.output / name for name in (*names, REPORT)))
        (draft / REPORT).write_text(json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n")
    return report


def _draw(report: ComparisonReport, draft: Path) -> None:
    from analysis.present.figures import compute_time, token_ratio, write_one

    folder = draft / "figures"
    folder.mkdir()
    write_one(token_ratio.TOKEN_RATIO, token_ratio.compute(report.comparisons), folder, "token_ratio")
    if report.throughput:
        write_one(compute_time.COMPUTE_TIME, compute_time.compute(report.comparisons), folder, "compute_time")
