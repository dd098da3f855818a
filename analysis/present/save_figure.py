"""Save one figure of a result to a file that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.estimate.findings import Analysis
from analysis.estimate.fit_table import TableTarget
from analysis.estimate.result import Answer
from analysis.present import Result
from cbs.errors import ConfigError
from cbs.files import atomic_file


def save_figure(result: Result | None, path: Path | None, name: str = "steps") -> list[Path]:
    """Save the figure called ``name`` of a result as ``.pdf`` or ``.png``; all fits of an analysis go into one figure.

    Returns the file; nothing if there is no file to write or nothing to draw.

    Raises:
        ConfigError: if the name of the file has another suffix.
        ResultsError: if it cannot be written.
    """
    if result is None or path is None:
        return []
    from analysis.present import style
    from analysis.present.figures import FIGURES

    if path.suffix not in (".pdf", ".png"):
        raise ConfigError(f"--figure {path}: a figure is a .pdf or a .png file")
    kind = FIGURES[name]
    part: Any = result
    if isinstance(result, Analysis):
        part = [_labelled(answer, result.answers) for answer in result.answers]
    table = kind.compute(part)
    if not len(table):
        return []
    with atomic_file(path, "the figure ", "") as draft:
        style.save_as(kind.figure(table), draft)
    return [path]


def _labelled(answer: Answer, answers: Sequence[Answer]) -> Answer:
    """Return the answer with a label that distinguishes its curve from all others in one figure."""
    groups, optimizers = {a.group.workload for a in answers}, {a.group.optimizer for a in answers}
    parts = [answer.group.workload] if len(groups) > 1 and answer.group.workload else []
    parts += [answer.group.optimizer] if len(optimizers) > 1 or not parts else []
    if len({str(other.target) for other in answers}) > 1:
        parts.append(str(answer.target))
        answer = replace(answer, target=TableTarget(metric="target", value=0.0, known=False))
    return replace(answer, group=replace(answer.group, optimizer=", ".join(parts)))
