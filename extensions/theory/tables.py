"""Presentation of cbs theory quadratic and cbs theory temperature: what they write and print."""

from dataclasses import replace
from typing import Any

from analysis.estimate.definitions import HEADLINE
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer
from analysis.formatting import DASH, number, percent, share_in_percent
from analysis.present import Presentation, presentation
from analysis.present.table import Column, Table, files, quantity
from analysis.quantities import OPEN
from extensions.theory.quadratic import QuadraticAnswer, label
from extensions.theory.temperature import Temperature

EXACT = (
    "B_crit, the range within 10 % and S_min are exact: around B_crit steps times examples are least, and S_min "
    "are the steps without noise; quantities with an interval come from the curve through these points"
)

ROUGH = 0.02  # Root mean square distance of the steps from their curve above which it is mentioned

UNSEEN = {
    Verdict.TOO_FEW_BATCH_SIZES: "further",
    Verdict.BELOW: "smaller",
    Verdict.ABOVE: "larger",
}
"""Verdicts that also hold without noise, and the batch sizes for which they call."""


@presentation.register
def _(result: QuadraticAnswer) -> Presentation:
    tables = {"steps": steps(result)} | ({"schedules": schedules(result)} if result.schedules else {})
    if result.fit is None:
        reached = any(row.steps for row in result.rows)
        missed = () if reached else ("nothing reached the target",)
        return Presentation(shown=(tables["steps"], *missed), tables=tables, json="nqm.json")
    fit = presentation(result.fit)
    tables |= fit.tables
    summary = tables["summary"]
    # Verdicts call mainly for seeds, which only measured curves have; here only those about batch sizes apply
    exact: dict[str, dict[str, Any]] = {"min_steps": {"interval": None}, "within 10 %": {"value": _around}}
    columns = tuple(
        replace(column, **exact.get(column.key or column.heading, {}))
        for column in summary.columns
        if column.key not in ("verdict", "advice", "seed_deviation", "shared_by_seeds", "moved_by_prior")
    )
    lines = [
        f"{answer.group.optimizer}: {answer.verdict}: no value beyond it; add {wanted} batch sizes with --batch-sizes"
        for answer in result.fit.answers
        for verdict, wanted in UNSEEN.items()
        if answer.verdict is verdict and answer.config.definition != HEADLINE
    ]
    lines += [
        f"{answer.group.optimizer}: the steps lie {share_in_percent(answer.draws.residual_rms)} (rms) off the curve, "
        "so its exponent is approximate; steps are whole numbers, and a lower --target takes more of them"
        for answer in result.fit.answers
        if answer.draws is not None and answer.draws.residual_rms > ROUGH
    ]
    tables["summary"] = replace(summary, columns=columns, lines=[*lines, EXACT], wide_lines=())
    shown = [tables[name] for name in ("summary", "steps", "schedules", "definitions") if name in tables]
    return Presentation(shown=shown, tables=tables, latex=fit.latex, json="nqm.json")


def _around(answer: Answer) -> str:
    """Say the exact range, which may lie beyond the batch sizes of the table."""
    return " to ".join(map(number, answer.near)) if answer.near != OPEN else DASH


def steps(answer: QuadraticAnswer) -> Table:
    """Return a table with one row per optimizer and batch size."""
    slowness = "1 - momentum or decay" if any(row.best_momentum is not None for row in answer.rows) else ""
    columns = (
        Column("optimizer", label, "optimizer", name=True),
        Column("power"),
        Column("batch_size", heading="batch size", name=True),
        Column("steps", heading="steps"),
        Column("best_lr", heading="best learning rate"),
        Column("best_momentum", lambda row: None if row.best_momentum is None else 1 - row.best_momentum, slowness),
        Column("lower_bound", lambda row: answer.lower_bound.get(row.batch_size), "lower bound", wide=True),
    )
    title = f"Steps to an expected loss of {answer.target:g}, from {answer.initial_loss:.3g}"
    return Table(columns=columns, rows=answer.rows, title=title)


def schedules(answer: QuadraticAnswer) -> Table:
    """Return a table with one row per batch size of the best learning rates of SGD over a run."""
    columns = (
        Column("batch_size", heading="batch size", name=True),
        Column("steps", heading="steps"),
        Column("first_lr", lambda row: row.lrs[0], "first rate"),
        Column("middle_lr", lambda row: row.lrs[len(row.lrs) // 2], "halfway"),
        Column("last_lr", lambda row: row.lrs[-1], "last rate"),
        Column("constant_lr", heading="constant rate"),
        Column("constant_steps", heading="its steps"),
    )
    title = f"Best learning rates of SGD on {len(answer.schedules[0].lrs)} pieces of a run"
    return Table(columns=columns, rows=answer.schedules, title=title)


@presentation.register
def _(result: Temperature) -> Presentation:
    said = f"[{percent(result.config.confidence)} % interval]"
    whose = tuple(Column(name, heading=name, name=True) for name in ("workload", "optimizer"))
    laws = Table(
        columns=(
            *files("sweep"),
            *whose,
            quantity("lr", "power of the learning rate"),
            quantity("batch_size", "power of the batch size"),
            quantity("temperature", "power of LR / B alone"),
            Column("residual_rms", heading="rms residual", text=share_in_percent),
            Column("points", heading="points"),
            Column("remark"),
        ),
        rows=result.laws,
        title=f"B_simple as a power of learning rate and batch size {said}",
    )
    points = Table(
        columns=(
            *files("sweep"),
            *whose,
            Column("lr", heading="learning rate", name=True),
            Column("batch_size", heading="batch size", name=True),
            Column("simple_noise_scale", "value", "B_simple", interval="interval"),
            Column("seeds", heading="seeds"),
            *files("note"),
        ),
        rows=result.points,
        title=f"Noise scale in examples, second half of every run {said}",
    )
    tables = {"temperature_laws": laws, "temperature_points": points}
    return Presentation(shown=[laws, points, *result.notes], tables=tables, json="temperature.json")
