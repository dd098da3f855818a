"""Presentation of ``cbs analyze`` and ``cbs fit``: what they write and print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.estimate.findings import Analysis
from analysis.present import Presentation, presentation
from analysis.present.answers import definitions, points, summary
from analysis.present.suggestions import in_words

if TYPE_CHECKING:
    pass


@presentation.register
def _(analysis: Analysis) -> Presentation:
    suggested = [] if analysis.suggestions is None else in_words(analysis.suggestions)
    tables = {
        "summary": summary(analysis.answers, names=analysis.headings),
        "points": points(analysis.answers),
        "definitions": definitions(analysis.answers, names=analysis.headings),
    }
    return Presentation(
        shown=[tables["summary"], tables["definitions"], *suggested, *analysis.notes],
        tables=tables,
        latex=("summary", "definitions"),
        paper={"summary": ("critical_batch_size", "exponent", "verdict")},
        json="report.json",
    )
