"""What ``cbs analyze`` and ``cbs fit`` write and print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.estimate.result import Answer
from analysis.phrases import number
from analysis.present import Presentation, presentation
from analysis.present.answers import definitions, points, summary
from analysis.questions.analyze import Analysis
from analysis.questions.suggest import Suggestion
from cbs.errors import ConfigError
from cbs.files import whole_file

if TYPE_CHECKING:
    from analysis.questions.fit_table import TableFit
    from analysis.questions.prediction.result import Predictions


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


def in_words(suggestions: Sequence[Suggestion]) -> Iterator[str]:
    """Lines for a person; the command on a line of its own, to be copied."""
    if not suggestions:
        yield "suggestions: none, no trials of this protocol would help"
    for entry in suggestions:
        yield f"suggested for {entry.group.optimizer}, {entry.target}: {'; '.join(entry.reasons)}"
        yield "; ".join(f"{name}: {value}" for name, value in facts(entry).items())
        yield f"  {entry.command}" if entry.command else "  (this sweep was not run by cbs sweep: no command)"


def facts(suggestion: Suggestion) -> dict[str, str]:
    """Which trials are suggested, what they take, and what they do to the interval where that is known."""
    sizes, seeds = (", ".join(map(str, values)) for values in (suggestion.batch_sizes, suggestion.seeds))
    count = "" if suggestion.trials is None else f"{suggestion.trials} trials: "
    lrs = ", learning rates are searched" if suggestion.trials is None else ""
    if suggestion.lrs is not None:
        lrs = f", learning rate {', '.join(f'{lr:.4g}' for lr in suggestion.lrs)}"
    found = {"trials": f"{count}batch size {sizes}, seed {seeds}{lrs}"}
    found["they take"] = f"about {number(suggestion.cost)} {suggestion.group.example_unit}s"
    factor = suggestion.interval_factor
    if factor is not None and factor < 1:
        found["interval afterwards"] = f"about {number(factor, 2)} times as wide as now, on a log scale"
    return found


def save_figure(found: TableFit | Predictions | None, path: Path | None) -> list[Path]:
    """One figure as ``.pdf`` or ``.png``: steps against batch size of all fits, or the prediction; the file, where
    there is one to write and something to draw.

    Raises:
        ConfigError: if the name of the file ends otherwise.
        ResultsError: if it cannot be written.
    """
    if found is None or path is None:
        return []
    from analysis.present import style
    from analysis.present.figures import FIGURES

    if path.suffix not in (".pdf", ".png"):
        raise ConfigError(f"--figure {path}: a figure is a .pdf or a .png file")
    if isinstance(found, Analysis):
        kind = FIGURES["steps"]
        table = kind.compute([_labelled(answer, found.answers) for answer in found.answers])
    else:
        kind = FIGURES["prediction"]
        table = kind.compute(found)
    if not len(table):
        return []
    with whole_file(path, "the figure ", "") as draft:
        style.save_as(kind.figure(table), draft)
    return [path]


def _labelled(answer: Answer, answers: Sequence[Answer]) -> Answer:
    """The answer under a name that tells its curve from every other in one figure."""
    from analysis.questions.fit_table import TableTarget

    groups, optimizers = {a.group.workload for a in answers}, {a.group.optimizer for a in answers}
    parts = [answer.group.workload] if len(groups) > 1 and answer.group.workload else []
    parts += [answer.group.optimizer] if len(optimizers) > 1 or not parts else []
    if len({str(other.target) for other in answers}) > 1:
        parts.append(str(answer.target))
        answer = replace(answer, target=TableTarget(metric="target", value=0.0, known=False))
    return replace(answer, group=replace(answer.group, optimizer=", ".join(parts)))
