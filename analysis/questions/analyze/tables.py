"""What ``cbs analyze`` and ``cbs fit`` write and print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.estimate.findings import Analysis
from analysis.present import Presentation, presentation
from analysis.present.answers import definitions, points, summary
from analysis.present.suggestions import in_words

if TYPE_CHECKING:
    pass


@presentation.register
def _(found: Analysis) -> Presentation:
    suggested = [] if found.suggestions is None else in_words(found.suggestions)
    tables = {
        "summary": summary(found.answers, names=found.headings),
        "points": points(found.answers),
        "definitions": definitions(found.answers, names=found.headings),
    }
    return Presentation(
        shown=[tables["summary"], tables["definitions"], *suggested, *found.notes],
        tables=tables,
        latex=("summary", "definitions"),
        json="report.json",
    )
