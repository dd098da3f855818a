"""What general tests know of this extension."""

from unittest.mock import Mock

from extensions.report.page import REFRESH
from tests.cases import Flags, answer

FLAGS = {
    "report": Flags(
        {
            "extensions.report.page.report": answer,
            "extensions.report.methods.methods": lambda *_, **__: Mock(paragraphs=("In words.",), bibtex="@"),
            "extensions.report.page.follow": answer,
        },
        cases={
            "--target": (["--target", "accuracy=0.75"], "metric='accuracy'"),
            "--methods": (["--methods"], "printed: In words."),
            "--live": (["--live"], "follow("),
        },
    )
}

MISTAKES = [
    (["report", "/no/such/folder"], ["/no/such/folder", "cbs sweep"]),
    (["report", "--confidence", "2"], ["confidence", "between 0 and 1"]),
    (["report", "--resamples", "99"], ["resamples", "at least 100"]),
]

STATEMENTS = [("figures.md", "writes the page again every {} seconds", lambda: (REFRESH,))]

DRAWING = ["report"]
