"""What ``cbs fit`` prints, and the figure it draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.estimate.result import Answer
from analysis.present import Presentation, presentation
from analysis.present.answers import definitions, points, summary
from analysis.questions.fit_table import TableFit, TableTarget
from cbs.errors import ConfigError
from cbs.files import whole_file


@presentation.register
def _(found: TableFit) -> Presentation:
    names = {"workload": "group"}
    if all(optimizer is None for _, optimizer in found.names):
        names["optimizer"] = "table" if all(group is None for group, _ in found.names) else "group"
    tables = {"summary": summary(found.answers, names=names), "definitions": definitions(found.answers, names=names)}
    return Presentation(
        shown=[*tables.values(), *found.notes],
        tables=tables | {"points": points(found.answers)},
        latex=tuple(tables),
        json="report.json",
    )


def save_figure(found: TableFit, path: Path) -> None:
    """Steps against batch size of all fits in one figure, as ``.pdf`` or ``.png``.

    Raises:
        ConfigError: if the name ends otherwise.
        ResultsError: if it cannot be written.
    """
    from analysis.present import style
    from analysis.present.figures import FIGURES

    if path.suffix not in (".pdf", ".png"):
        raise ConfigError(f"--figure {path}: a figure is a .pdf or a .png file")
    kind = FIGURES["steps"]
    table = kind.compute([_labelled(answer, found.answers) for answer in found.answers])
    with whole_file(path, "the figure ", "") as draft:
        style.save_as(kind.figure(table), draft)


def _labelled(answer: Answer, answers: Sequence[Answer]) -> Answer:
    """The answer under a name that tells its curve from every other in one figure."""
    groups, optimizers = {a.group.workload for a in answers}, {a.group.optimizer for a in answers}
    parts = [answer.group.workload] if len(groups) > 1 and answer.group.workload else []
    parts += [answer.group.optimizer] if len(optimizers) > 1 or not parts else []
    targets = {str(other.target) for other in answers}
    if len(targets) == 1:
        return replace(answer, group=replace(answer.group, optimizer=", ".join(parts)))
    label = ", ".join([*parts, str(answer.target)])
    unnamed = TableTarget(metric="target", value=0.0, known=False)
    return replace(answer, group=replace(answer.group, optimizer=label), target=unnamed)
