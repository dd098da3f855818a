"""What every question returns, and how a notebook shows it: its tables, the sentences below them, its main figures."""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

from analysis.config import AnalysisConfig
from analysis.estimate.result import Answer
from analysis.estimate.suggest import Suggestion
from analysis.formatting import plain, shown
from analysis.present import presentation, show
from analysis.present.table import Table

# Figures that a notebook shows; the others are drawn by `cbs` and on the page of `cbs report`
MOST = 2


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Base class of findings; the fields of subclasses become keys of the JSON output.

    ``config`` is the configuration of the analysis, and ``notes`` say what was left out, one line each.
    """

    config: AnalysisConfig = field(repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        """What answers the question as a terminal of 80 columns shows it."""
        from rich.console import Console

        text = io.StringIO()
        show(self, Console(width=80, file=text, color_system=None, force_jupyter=False))
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        """What answers the question as HTML without scripts, styles and links."""
        from analysis.present.figures import figures_of

        presented = presentation(self)
        parts = [escape(part) if isinstance(part, str) else "\n".join(_table(part)) for part in presented.shown]
        parts += [f"<code>{escape(command)}</code>" for command in presented.then]
        parts += [_image(each.kind.figure(each.table)) for each in list(figures_of(self, every=False))[:MOST]]
        return "\n".join(f"<p>{part}</p>" for part in parts)

    def to_json(self) -> dict[str, Any]:
        about = {"confidence": self.config.confidence, "definition": self.config.definition}
        return about | shown(self) | {"notes": list(self.notes)}


@dataclass(frozen=True, kw_only=True)
class Analysis(Findings):
    """Result of an analysis, with one answer per sweep, group and target.

    ``suggestions`` are trials that would help, at most one entry per answer.

    Example:

        >>> import pandas as pd
        >>> from analysis import fit
        >>> table = pd.DataFrame({"batch_size": [4, 8, 16, 32, 64, 128], "steps": [2060, 1080, 600, 352, 240, 178]})
        >>> analysis = fit(table)
        >>> isinstance(analysis, Analysis), [answer.verdict.value for answer in analysis.answers]
        (True, ['too few seeds'])
    """

    answers: tuple[Answer, ...] = field(repr=False)
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def headings(self) -> dict[str, str]:
        """Columns of tables that are displayed under another name."""
        return {}

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"fits": plain(self.answers)}


def _table(table: Table) -> Iterator[str]:
    """Yield the lines of a table as it stands on a terminal."""
    table = table.shown()
    if table.rows:
        yield f"<table><caption>{escape(table.title)}</caption>"
        yield f"<tr>{''.join(f'<th>{escape(column.heading)}</th>' for column in table.columns)}</tr>"
        for row in table.cells():
            cells = [escape(" ".join(filter(None, cell))) for cell in row]
            yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        yield "</table>"
    yield "<br>".join(map(escape, table.lines))


def _image(figure: Any) -> str:
    from analysis.present import style  # matplotlib takes a second to import

    drawn = io.BytesIO()
    with style.style():
        figure.savefig(drawn, format="png", dpi=150)
    return f'<img src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}" width="480">'
