"""The main question: from a folder of results to a critical batch size per optimizer and target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analysis.config import DEFAULT, AnalysisConfig
from analysis.estimate.noise import UNSAID
from analysis.estimate.result import Answer, answers
from analysis.plain import plain
from analysis.questions.scopes import Findings
from analysis.read.results import load
from cbs.target import Target

if TYPE_CHECKING:
    from analysis.questions.suggest import Suggestion


@dataclass(frozen=True, kw_only=True)
class Analysis(Findings):
    """What :func:`analyze` found.

    Attributes:
        answers: one per sweep, group and target.
        suggestions: trials that would help, one per answer that has any; ``None`` where nobody asked.
    """

    answers: tuple[Answer, ...] = field(repr=False)
    suggestions: tuple[Suggestion, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"fits": plain(self.answers)}


def analyze(
    path: str | os.PathLike[str],
    config: AnalysisConfig = DEFAULT,
    *,
    targets: Sequence[float | Target] | None = None,
    suggestions: bool = False,
) -> Analysis:
    """Critical batch size with an interval, per sweep, optimizer and target.

    Args:
        path: one sweep, or a folder of sweeps.
        config: how the numbers are made.
        targets: values of each sweep's own metric, or whole targets; ``None`` takes each sweep's own target. Targets
            easier than a sweep's own are read from the same curves.
        suggestions: whether to work out which trials would help, see :func:`analysis.questions.suggest.suggest`.

    Raises:
        ConfigError: if an argument is out of its domain or a target cannot be used.
        ResultsError: if there are no usable results at ``path``.
    """
    results = load(path)
    found = answers(results, config, targets=targets)
    suggested = None
    if suggestions:
        from analysis.questions.suggest import suggest

        suggested = tuple(filter(None, map(suggest, found)))
    return Analysis(
        config=config,
        answers=tuple(found),
        suggestions=suggested,
        notes=(*results.notes, *([UNSAID] if any(entry.noise_scale.note == UNSAID for entry in found) else [])),
    )
