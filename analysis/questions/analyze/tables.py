"""Presentation of ``cbs analyze`` and ``cbs fit``: what they write and print."""

from __future__ import annotations

from analysis.estimate.findings import Analysis
from analysis.present import Presentation, presentation
from analysis.present.answers import definitions, doublings, points, summary
from analysis.present.sentences import suggested


@presentation.register
def _(analysis: Analysis) -> Presentation:
    tables = {
        "summary": summary(analysis.answers, names=analysis.headings),
        "doublings": doublings(analysis.answers, names=analysis.headings),
        "points": points(analysis.answers),
        "definitions": definitions(analysis.answers, names=analysis.headings),
    }
    said = [] if analysis.suggestions is None else suggested(analysis.suggestions)
    return Presentation(
        shown=[tables["summary"], tables["doublings"], tables["definitions"], *said, *analysis.notes],
        tables=tables,
        latex=("summary", "doublings", "definitions"),
        paper={"summary": ("critical_batch_size", "within 10 %", "examples_at_critical", "verdict")},
        json="report.json",
    )
