"""Presentation of ``cbs theory quadratic --spectrum``: what it prints."""

from __future__ import annotations

from analysis.extensions.theory.prediction.result import Prediction, Predictions, Variation
from analysis.phrases import percent
from analysis.present import Presentation, presentation
from analysis.present.answers import about
from analysis.present.table import Column, Table, quantity


@presentation.register
def _(predictions: Predictions) -> Presentation:
    tables = {
        "prediction": summary(predictions),
        "assumptions": assumptions(predictions),
        "predicted_steps": steps(predictions),
    }
    return Presentation(
        shown=[*tables.values(), *predictions.notes],
        tables=tables,
        latex=("prediction", "assumptions"),
        json="prediction.json",
    )


def summary(answer: Predictions) -> Table:
    """Return a table with one row per optimizer and target: measured, predicted, and whether the prediction holds."""
    answers = [entry.answer for entry in answer.entries]
    rows = [(entry, entry.answer) for entry in answer.entries]

    columns = (
        *about(answers),
        Column("method", "mapped.words", "on the quadratic", left=True),
        quantity("critical_batch_size", "B_crit measured", "answer.critical"),
        quantity("predicted_critical_batch_size", "predicted", "main.critical_batch_size"),
        quantity("critical_batch_size_ratio", "ratio", "critical_ratio"),
        quantity("min_steps", "S_min measured"),
        quantity("predicted_min_steps", "predicted", "main.min_steps"),
        quantity("min_steps_ratio", "ratio"),
        Column("verdict", heading="verdict of the measured", left=True),
        Column("says"),
    )
    kind = answer.spectrum.curvature.replace("_", "-")
    where = answer.entries[0].main.words
    title = f"Predicted from the measured {kind} spectrum ({where}) [{percent(answer.config.confidence)} % interval]"
    lines = [f"{entry.answer.group.optimizer}: {entry.says}" for entry in answer.entries]
    return Table(columns=columns, rows=rows, title=title, lines=lines)


def assumptions(predictions: Predictions) -> Table:
    """Return a table with one row per optimizer, target and assumption, which shows how much depends on it."""
    rows = [(each, entry, entry.answer) for entry in predictions.entries for each in (entry.main, *entry.others)]

    def critical_ratio(each: Variation, entry: Prediction, _: object) -> float | None:
        return each.critical_batch_size.over(entry.answer.critical).value

    def steps_ratio(each: Variation, entry: Prediction, _: object) -> float | None:
        return each.min_steps.over(entry.answer.min_steps).value

    columns = (
        *about([entry.answer for entry in predictions.entries]),
        Column("assumption", "words", "assumption", left=True),
        Column("point"),
        Column("floor"),
        Column("own_floor", "own"),
        Column("predicted_critical_batch_size", "critical_batch_size.value", "B_crit"),
        Column("critical_batch_size_ratio", critical_ratio, "B_crit over measured"),
        Column("predicted_min_steps", "min_steps.value", "S_min"),
        Column("min_steps_ratio", steps_ratio, "S_min over measured"),
        Column("why_not", "", "why not", left=True),
    )
    columns = tuple(c for c in columns if c.key != "why_not" or any(each.why_not for each, *_ in rows))
    return Table(columns=columns, rows=rows, title="How much depends on what is assumed")


def steps(predictions: Predictions) -> Table:
    """Return a table with one row per optimizer, target and batch size."""
    rows = []
    for entry in predictions.entries:
        measured = {point.batch_size: point.steps_to_target for point in entry.answer.points}
        for size, predicted in zip(entry.batch_sizes, entry.main.steps, strict=False):
            steps = measured.get(int(size))
            ratio = None if predicted.value is None or steps is None else predicted.value / steps
            row = {"batch_size": size, "steps_to_target": steps, "predicted_steps": predicted, "ratio": ratio}
            rows.append((row, entry.answer))
    columns = (
        *about([entry.answer for entry in predictions.entries]),
        Column("batch_size", heading="batch size"),
        Column("steps_to_target", heading="steps measured"),
        quantity("predicted_steps", "predicted"),
        Column("ratio", heading="ratio"),
    )
    return Table(columns=columns, rows=rows, title="Steps to target", asked="wide")
