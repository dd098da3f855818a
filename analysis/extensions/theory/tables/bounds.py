"""Presentation of ``cbs theory bounds``: what it writes and prints."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.estimate.definitions import symbol
from analysis.extensions.theory.bounds.measured import BoundScope, MeasuredBound, MeasuredBounds
from analysis.extensions.theory.bounds.variants import BOUND, Scaled
from analysis.phrases import number, percent, share_in_percent
from analysis.present import Presentation, presentation
from analysis.present.answers import about, example_units
from analysis.present.table import Column, Table, files, quantity

UPPER = (
    "every prediction is one of an upper bound on the steps: measured steps that go against it do not contradict the "
    "bound, but must not be expected to follow it"
)
TUNED = "the bounds keep one learning rate for all batch sizes; here each batch size has its best one (see --at-lr)"
INSIDE = "the form needs b_0 below the smallest batch size that reached the target, and so b* below 'at most'"


@presentation.register
def _(answer: MeasuredBounds) -> Presentation:
    bounds = [bound for scope in answer.scopes for bound in scope.bounds]
    interval = f"[{percent(answer.config.confidence)} % interval]"
    tables = {
        "steps_bounds": measured(bounds, interval),
        "predictions": predictions(bounds, f"Predictions of the bounds for one optimizer, margins {interval}"),
        "bound_scalings": scalings(answer.scopes, f"Predictions of the bounds between settings {interval}"),
    }
    shown = [table for table in tables.values() if table.rows]
    return Presentation(
        shown=[*shown, UPPER, *([TUNED] if answer.lr is None else []), *answer.notes],
        tables=tables,
        latex=("steps_bounds", "bound_scalings"),
        json="steps_bounds.json",
    )


def measured(bounds: Sequence[MeasuredBound], interval: str) -> Table:
    """Return a table with one row per optimizer and target."""
    answers = [bound.answer for bound in bounds]
    critical = symbol(answers[0].critical.definition)
    columns = (
        *about(answers),
        Column("definition", "answer.critical.definition"),
        Column("critical_batch_size", heading=critical, interval="interval"),
        quantity("fewest_examples", "fewest examples at", "definitions.sfo"),
        Column("form", lambda b, _: b.form or None),
        Column("form_verdict", lambda b, _: str(b.checks[-1].verdict) if b.form else None),
        Column("", lambda b, _: f"{b.form}: {b.checks[-1].verdict}" if b.form else None, "form", left=True),
        quantity("smallest_batch_size", "b_0", "pole"),
        quantity("bound_best_batch_size", "b*", "best"),
        Column("largest_best", heading="at most"),
        Column("residual_rms", heading="rms off form", text=share_in_percent),
        Column("curve_residual_rms", "answer.fit.residual_rms", "off curve", text=share_in_percent),
        Column("lack_of_fit", "misfit.probability"),
        Column("verdict", heading="verdict", left=True),
        *files("remark"),
    )
    title = f"Steps bounds beside the critical batch size in {example_units(answers)} {interval}"
    lines = [INSIDE] if any(bound.fit for bound in bounds) else []
    lines += [f"{bound.optimizer}: {bound.remark}" for bound in bounds if bound.remark]
    rows = [(bound, bound.answer) for bound in bounds]
    return Table(columns=columns, rows=rows, title=title, lines=list(dict.fromkeys(lines)))


def predictions(bounds: Sequence[MeasuredBound], title: str) -> Table:
    """Return a table with one row per optimizer, target and prediction."""
    rows = [(check, bound.answer) for bound in bounds for check in bound.checks]
    columns = (
        *about([bound.answer for bound in bounds]),
        Column("prediction", heading="of the upper bound", name=True),
        quantity("margin", "margin"),
        Column("verdict", heading="measured", left=True),
        Column("why", heading="where, why", left=True),
    )
    return Table(columns=columns, rows=rows, title=title, lines=["a margin above 1 is on the side of the prediction"])


def scalings(scopes: Sequence[BoundScope], title: str) -> Table:
    """Return a table with one row per pair of settings, or family of settings, and measured batch size."""
    rows = [(scaled, scope.answers[0].target, scope.scope) for scope in scopes for scaled in scope.scalings]
    several = len(scopes) > 1
    columns = (
        *files("sweep", "workload"),
        Column("", lambda _, target, __: str(target), "target" if several else "", name=True),
        *files("metric", "target"),
        Column("", lambda scaled, *_: named(scaled.quantity), "batch size", name=True),
        Column("quantity"),
        Column("kind", heading="of it", left=True),
        Column("optimizers", lambda scaled, *_: " -> ".join(scaled.optimizers)),
        Column("", lambda scaled, *_: _between(scaled), "between", left=True),
        Column("predicted", heading="predicted"),
        quantity("measured", "measured", text=number),
        Column("verdict", heading="verdict", left=True),
        Column("why", heading="why" if any(scaled.why for scaled, *_ in rows) else "", left=True),
    )
    lines = ["exponent: of the measured batch size over the predicted one; 1 as predicted, 0 if it does not change"]
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def _between(scaled: Scaled) -> str:
    first, last = scaled.optimizers[0], scaled.optimizers[-1]
    return f"{first} -> {last}" if len(scaled.optimizers) == 2 else f"all {len(scaled.optimizers)}, {first} to {last}"


def named(quantity: str) -> str:
    """Return the displayed name of a measured batch size."""
    return {BOUND: "b* of the form", "sfo": "fewest examples"}.get(quantity) or symbol(quantity)
