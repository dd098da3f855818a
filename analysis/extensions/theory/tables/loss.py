"""Presentation of ``cbs theory loss``: what it writes and prints."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.estimate.forms import FORMS
from analysis.extensions.theory.loss import ORDER, Losses
from analysis.extensions.theory.loss.holdout import AXES, Held, Holdout
from analysis.phrases import number, percent, plural, share_in_percent
from analysis.present import Presentation, presentation
from analysis.present.loss_fits import limits, parameters
from analysis.present.table import Column, Table, files, quantity

_APART = 2.0
"""Ratio of critical batch sizes above which forms disagree."""


@presentation.register
def _(losses: Losses) -> Presentation:
    interval_note = f"[{percent(losses.config.confidence)} % interval]"
    refused = [f"{name} is not fitted: {why}" for name, why in losses.refused.items()]
    tables = {
        "holdout": holdouts(losses, interval_note, refused),
        "parameters": parameters(losses.fits),
        "predictions": predictions(losses, interval_note),
        "critical_batch_sizes": critical(losses, interval_note),
    }
    shown: list[Table | str] = [tables["holdout"]]
    for name in [name for name in ORDER if name in losses.fits]:
        title = f"L = {FORMS[name].formula} ({name}), {plural(losses.fits[name].runs, 'run')} {interval_note}"
        fitted, asked = {name: losses.fits[name]}, "" if name == "nqs" else "wide"
        shown.append(parameters(fitted, title, limits(losses.fits[name]), asked=asked))
    shown += [table for table in (tables["predictions"], tables["critical_batch_sizes"]) if table.rows]
    return Presentation(
        shown=[*shown, *_disagreement(losses), *losses.notes],
        tables={name: table for name, table in tables.items() if table.rows},
        latex=("holdout", "parameters"),
        json="losses.json",
    )


def holdouts(losses: Losses, said: str, lines: Sequence[str]) -> Table:
    """Return a table with one row per axis and form: the error on the runs that were left out."""
    rows = [(entry, one) for one in losses.holdouts for entry in one.entries]

    def held(_: object, one: Holdout) -> str:
        count = int(one.left_out.sum())
        beyond = f"{number(one.beyond)} times beyond"
        return f"{one.axis} from {number(one.start)}, {beyond}: {count} of {len(one.left_out)}"

    def inside(entry: Held, one: Holdout) -> str | None:
        return None if entry.inside is None else f"{entry.inside} of {int(one.left_out.sum())}"

    def residual(entry: Held, _: object) -> float | None:
        return losses.fits[entry.form].residual_rms if entry.form in losses.fits else None

    columns = (
        Column("", held, "runs left out", name=True),
        Column("axis"),
        Column("axis_in_words", lambda _, one: AXES[one.axis]),
        *files("start", "beyond"),
        Column("left_out", lambda _, one: int(one.left_out.sum())),
        Column("form", heading="form", name=True),
        Column("", residual, "residual, all runs", text=share_in_percent),
        Column("error_percent", "error", "error (%)", "interval", times=100.0),
        Column("bias_percent", "bias", "bias (%)", times=100.0),
        Column("", inside, "in its interval", left=True),
        Column("inside_interval", "inside"),
        Column("refused"),
    )
    why = dict.fromkeys(f"{entry.form}, {one.axis} left out: {entry.refused}" for entry, one in rows if entry.refused)
    title = f"Error of a loss predicted from the smaller runs, root mean square of ln(predicted/measured) {said}"
    return Table(columns=columns, rows=rows, title=title, lines=[*lines, *why])


def predictions(losses: Losses, interval_note: str) -> Table:
    """Return a table with one row per requested run and form."""
    columns = (
        Column("parameters", heading="N", name=True),
        Column("batch_size", heading="B", name=True),
        Column("steps", heading="K", name=True),
        Column("form", heading="form", name=True),
        Column("loss", heading="loss", interval="interval", ends=("low", "high")),
        Column("times_beyond", heading="compute over the most measured"),
    )
    lines = ["intervals are no narrower than the error on the runs left out; farther out they hold if the form does"]
    return Table(columns=columns, rows=losses.predictions, title=f"Predicted loss {interval_note}", lines=lines)


def critical(losses: Losses, said: str) -> Table:
    """Return a table with one row per form, model size and target."""
    columns = (
        Column("form", heading="form", name=True),
        Column("parameters", heading="N", name=True),
        Column("times_beyond"),
        Column("target", heading="loss", name=True),
        quantity("critical_batch_size", "B_crit", "critical"),
        quantity("min_steps", "S_min"),
        quantity("fitted_critical_batch_size", "of a fitted curve", "fitted"),
        quantity("fitted_exponent", "its exponent", "exponent"),
        Column("remark"),
    )
    lines = [
        "B_crit takes twice the steps S_min of an infinitely large batch; of a fitted curve: as cbs fit estimates it "
        "from the steps at the batch sizes measured; the learning rate is that of the runs, not tuned again"
    ]
    for one in losses.implied:
        beyond = f"N is {number(one.times_beyond)} times beyond the runs" if one.times_beyond > 1.001 else ""
        remarks = "; ".join(filter(None, (one.remark, beyond)))
        lines += [f"{one.form}, N = {number(one.parameters)}, loss {number(one.target)}: {remarks}"] if remarks else []
    return Table(
        columns=columns, rows=losses.implied, title=f"Critical batch size that the forms imply {said}", lines=lines
    )


def _disagreement(losses: Losses) -> list[str]:
    """Return a line for every model size and target at which the forms disagree."""
    places: dict[tuple[float, float], dict[str, float]] = {}
    for one in losses.implied:
        if one.critical.value:
            places.setdefault((one.parameters, one.target), {})[one.form] = one.critical.value
    lines = []
    for (size, target), values in places.items():
        factor = max(values.values()) / min(values.values())
        if factor > _APART:
            where = f"N = {number(size)}, loss {number(target)}"
            forms = " and ".join(values)
            lines.append(
                f"{where}: {forms} differ by a factor of {number(factor)}: losses do not determine B_crit; run a sweep"
            )
    return lines
