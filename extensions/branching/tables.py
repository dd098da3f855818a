"""Presentation of ``cbs local``: what it writes and prints."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np

from analysis.estimate.diagnosis import Verdict
from analysis.estimate.noise import EUCLIDEAN
from analysis.formatting import DASH, number, percent, share, with_interval
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, quantity
from extensions.branching.checkpoints import LocalCheckpoint
from extensions.branching.local_batch_sizes import LocalBatchSizes, LocalCurve, LocalScope, in_words

# Checkpoints that are shown unless everything is
MOST = 9


@presentation.register
def _(result: LocalBatchSizes) -> Presentation:
    tables = {"checkpoints": checkpoints(result), "averages": averages(result), "pairs": pairs(result)}
    wide = list(tables.values())
    curves = [(name, curve, table) for name, curve, table in _curves(result)]
    tables |= {f"curve-{name}": table for name, _, table in curves}
    level = percent(result.config.confidence)
    folder = result.folder
    then = [
        f"cbs schedule plan {shlex.quote(f'{folder}/curve-{name}.csv')} --budget {curve.checkpoints[-1].examples}"
        for name, curve, table in curves
        if folder and len(table.rows) > 1
    ]
    return Presentation(
        shown=[at_a_glance(result, f"[{level} % interval]"), *result.notes],
        wide=[*wide, f"every interval {level} %"],
        then=then[:1],
        tables=tables,
        latex=("checkpoints", "averages"),
        json="local.json",
    )


def at_a_glance(result: LocalBatchSizes, said: str) -> Table:
    """Return a table with one row per optimizer and checkpoint, of no more than :data:`MOST` checkpoints, the first and
    the last of every optimizer among them."""
    every = [(curve, scope) for scope in result.scopes for curve in scope.curves]
    rows = []
    for curve, scope in every:
        last = len(curve.checkpoints) - 1
        indices = np.linspace(0, last, min(last + 1, max(2, MOST // len(every))))
        rows += [(curve.checkpoints[round(index)], curve, scope) for index in indices]
    count = sum(len(curve.checkpoints) for curve, _ in every)
    columns = (
        *_about(result),
        Column("", "examples", _units(result)),
        Column("", "loss", "loss", text=lambda value: number(value, 4)),
        Column("", "critical_batch_size.value", "B_local", "critical_batch_size.interval"),
        Column("", "verdict", "verdict", left=True),
    )
    lines = [f"{len(rows)} of {count} checkpoints: --wide shows all"] if len(rows) < count else []
    doubts = dict.fromkeys(each.advice for each, *_ in rows if each.verdict is not Verdict.OK and each.advice)
    lines += list(doubts)[:1]
    return Table(columns=columns, rows=rows, title=_title(result, said), lines=lines)


def _title(result: LocalBatchSizes, said: str = "") -> str:
    tolerance = "; ".join(dict.fromkeys(in_words(scope) for scope in result.scopes))
    title = f"Local critical batch size in {_units(result)}: up to which a branch does not fall behind ({tolerance})"
    return f"{title} {said}".rstrip()


def rows(result: LocalBatchSizes) -> list[tuple[LocalCheckpoint, LocalCurve, LocalScope]]:
    """Return every checkpoint with its curve and scope."""
    return [(each, curve, scope) for scope in result.scopes for curve in scope.curves for each in curve.checkpoints]


def _about(result: LocalBatchSizes) -> tuple[Column, ...]:
    several = len({scope.workload for scope in result.scopes}) > 1
    return (
        Column("workload", heading="workload" if several else "", name=True),
        Column("optimizer", heading="optimizer", name=True),
    )


def _units(result: LocalBatchSizes) -> str:
    units = {f"{scope.example_unit}s" for scope in result.scopes}
    return units.pop() if len(units) == 1 else "examples"


def _tokens(value: float | None, scope: LocalScope) -> float | None:
    return None if value is None or scope.tokens_per_example is None else value * scope.tokens_per_example


def checkpoints(result: LocalBatchSizes) -> Table:
    """Return a table with one row per optimizer and checkpoint."""
    every, unit = rows(result), _units(result)
    tokens = any(scope.tokens_per_example for scope in result.scopes)
    noise = any(each.noise_scale.measured for each, *_ in every)
    matched = noise and any(each.matched_geometry not in ("", EUCLIDEAN) for each, *_ in every)

    def by_rule(each: LocalCheckpoint, *_: Any) -> str:
        low, high = each.published.interval
        return DASH if low is None else f"{number(low)} to {DASH if high is None else number(high)}"

    columns = (
        *_about(result),
        Column("examples", heading=unit),
        Column("tokens", lambda each, _, scope: _tokens(each.examples, scope), "tokens" if tokens else "", text=number),
        Column("loss", heading="loss", text=lambda value: number(value, 4)),
        Column("batch_size", heading="B of the run", text=number),
        quantity("factor"),
        quantity("local_critical_batch_size", "B_local", "critical_batch_size", r"$B_{\mathrm{local}}$"),
        Column(
            "local_critical_batch_size_tokens",
            lambda each, _, scope: _tokens(each.critical_batch_size.value, scope), "B_local (tokens)" if tokens else "",
            text=number, wide=True,
        ),
        Column("", by_rule, "published rule"),
        quantity("published", of="published"),
        Column("published_factor"),
        quantity("recovery", "k* / half window", wide=True),
        quantity("simple_noise_scale", "B_simple" if noise else "", "noise_scale", r"$B_{\mathrm{simple}}$"),
        quantity("simple_noise_scale_ratio", "B_simple / B_local" if noise else "", "noise_scale_ratio", wide=True),
        Column("matched_geometry"),
        quantity("matched_noise_scale", "B_matched" if matched else "", wide=True),
        quantity("matched_noise_scale_ratio", "B_matched / B_local" if matched else "", wide=True),
        Column("window"),
        Column("branches", heading="branches"),
        Column("tolerance"),
        Column("verdict", heading="verdict", left=True),
        Column("advice"),
    )  # fmt: skip
    lines = [
        f"{curve.optimizer} at {number(each.examples)} {unit}: "
        f"{'' if each.verdict is Verdict.OK else f'{each.verdict}: '}{each.advice}"
        for each, curve, _ in every
        if each.advice
    ]
    return Table(columns=columns, rows=every, title=_title(result), lines=lines)


def averages(result: LocalBatchSizes) -> Table:
    """Return a table with one row per optimizer that has several checkpoints."""
    both = [(curve, scope) for scope in result.scopes for curve in scope.curves]

    def beside(curve: LocalCurve, *_: Any) -> str:
        return "; ".join(f"{with_interval(each.value, each.interval)} at {each.target}" for each in curve.sweep) or DASH

    columns = (
        *_about(result),
        quantity("average", "time average"),
        quantity("exponent", "power of examples"),
        quantity("power_average", "f(T)/(c + 1)"),
        Column("sweep", beside, "B_crit of sweeps" if any(curve.sweep for curve, _ in both) else "", left=True),
    )
    kept = [row for row in both if len(row[0].checkpoints) > 1]
    lines = ["time average: the constant batch size that is nearest to the local one; f(T)/(c + 1): the same from the"
             " start of the run, by a power law of the examples"] if kept else []  # fmt: skip
    return Table(columns=columns, rows=kept, title=f"Along the run, in {_units(result)}", lines=lines)


def pairs(result: LocalBatchSizes) -> Table:
    """Return a table with one row per ordered pair of optimizers and loss."""
    every = [(pair, scope) for scope in result.scopes for pair in scope.pairs]
    columns = (
        Column("workload"),
        Column("optimizer", heading="first", name=True),
        Column("other", heading="second", name=True),
        Column("loss", heading="loss", text=lambda value: number(value, 4)),
        Column("ratio", "value", "first / second", "interval"),
        Column("probability_larger", "probability", "P(first larger)", text=share),
    )
    return Table(columns=columns, rows=every, title="Local critical batch sizes at equal loss")


def _curves(result: LocalBatchSizes) -> Iterator[tuple[str, LocalCurve, Table]]:
    """Yield the name, curve and table of every optimizer, as ``cbs schedule plan`` reads it: one row per
    checkpoint that has a value."""
    names: dict[str, int] = {}
    for scope in result.scopes:
        for curve in scope.curves:
            name = re.sub(r"[^A-Za-z0-9.]+", "_", curve.optimizer).strip("_")
            names[name] = names.get(name, 0) + 1
            there = [each for each in curve.checkpoints if each.critical_batch_size.value is not None]
            columns = (
                Column("examples"),
                Column("critical_batch_size", "critical_batch_size.value", interval="critical_batch_size.interval",
                       ends=("low", "high")),
                Column("batch_size"),
            )  # fmt: skip
            if there:
                yield f"{name}-{names[name]}" if names[name] > 1 else name, curve, Table(columns=columns, rows=there)
