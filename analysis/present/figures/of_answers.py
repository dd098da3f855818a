"""What figures of an analysis have in common: what they are drawn from, columns that say whose a row is, and rows of
steps against batch size."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.estimate.definitions import in_words
from analysis.estimate.estimates import TableTarget
from analysis.estimate.result import Answer
from analysis.estimate.scopes import scopes
from analysis.estimate.studies import Point
from analysis.present.figures import FigurePart, along, in_file_name, in_one, parts, tidy
from analysis.present.findings import Analysis
from analysis.quantities import Array, percentiles

CRITICAL = ("critical_batch_size", "critical_low", "critical_high")
"""Columns of the value and its interval, see :func:`about`."""

_VISIBLE = 0.05  # Difference in ln steps that is about the width of a line


def scoped(answers: Sequence[Answer]) -> list[FigurePart]:
    """Return the answers of every (sweep, workload, target), in order, each with a suffix that distinguishes its
    files."""
    return [
        FigurePart(members, "".join(f"-{in_file_name(part)}" for part in told if part))
        for told, members in scopes(answers)
    ]


@parts.register
def _(result: Analysis) -> list[FigurePart]:
    return [*scoped(result.answers), FigurePart(result.answers, whole=True)]


@in_one.register
def _(result: Analysis) -> list[Answer]:
    """Return the answers, each with what distinguishes it from all others as the name of its optimizer."""
    groups, optimizers, targets = (
        len({of(answer) for answer in result.answers}) > 1
        for of in (lambda a: a.group.workload, lambda a: a.group.optimizer, lambda a: str(a.target))
    )
    found = []
    for answer in result.answers:
        parts = [answer.group.workload] if groups and answer.group.workload else []
        parts += [answer.group.optimizer] if optimizers or not parts else []
        if targets:
            parts.append(str(answer.target))
            answer = replace(answer, target=TableTarget(metric="target", value=0.0, known=False))
        found.append(replace(answer, group=replace(answer.group, optimizer=", ".join(parts))))
    return found


def about(answer: Answer) -> dict[str, Any]:
    """Return columns that say which optimizer a row belongs to, its units, and values shown beside its curve."""
    critical = answer.critical_batch_size, *answer.interval
    return {
        "optimizer": answer.group.optimizer,
        "definition": answer.critical.definition,
        "definition_in_words": in_words(answer.critical.definition, answer.critical.options),
        **dict(zip(CRITICAL, critical, strict=True)),
        "confidence": answer.confidence,
        "example_unit": answer.group.example_unit,
        "tokens_per_example": answer.group.tokens_per_example,
        "target": str(answer.target),
    }


def of_each(
    rows: Callable[[Answer], Iterable[dict[str, Any]]], columns: Sequence[str]
) -> Callable[[Sequence[Answer]], pd.DataFrame]:
    """Return the function ``compute`` of a figure: the table of the ``rows`` of every answer, each with the columns of
    :func:`about`."""
    return lambda answers: tidy([row | about(answer) for answer in answers for row in rows(answer)], columns)


def measured(point: Point) -> dict[str, Any]:
    """Return the row of a batch size that reached the target, with the range over seeds."""
    ends = {"low": min(point.steps_per_seed), "high": max(point.steps_per_seed)}
    return {"kind": "point", "batch_size": point.batch_size, "steps": point.steps_to_target} | ends


def fitted(answer: Answer, batch_sizes: Array) -> list[dict[str, Any]]:
    """Return rows of the expected curve, with its interval band, and of the hyperbola for comparison."""
    draws = answer.draws
    assert draws is not None
    expected = draws.estimate(batch_sizes)
    band = np.exp(percentiles(draws.drawn(batch_sizes), answer.confidence))
    rows = along("fit", batch_size=batch_sizes, steps=np.exp(expected), low=band[0], high=band[1])
    if answer.hyperbola is not None:
        if_one = np.median(answer.hyperbola.curve.log_steps(batch_sizes), axis=0)
        if np.abs(if_one - expected).max() > _VISIBLE:
            rows += along("hyperbola", batch_size=batch_sizes, steps=np.exp(if_one))
    return rows
