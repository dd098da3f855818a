"""What all questions share: how a result is framed, and the answers of one sweep, workload and target side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.config import AnalysisConfig
from analysis.estimate.across import as_one, differing
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer, scopes
from analysis.estimate.suggest import Suggestion
from analysis.plain import plain, shown
from analysis.read.results import load
from cbs.trial.target import Target

SCOPE = ("sweep", "workload", "metric", "target")
"""Columns that every table begins with, see :class:`Scope`."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a question found; the fields of each are keys of its JSON. ``config`` says how, and ``notes`` what was left
    out, one line each."""

    config: AnalysisConfig = field(repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        about = {"confidence": self.config.confidence, "definition": self.config.definition}
        return about | shown(self) | {"notes": list(self.notes)}


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The answers of one sweep, workload and target, one per optimizer; ``title`` is the target, after what else tells
    the scope from the others."""

    title: str = field(repr=False)
    answers: tuple[Answer, ...] = field(repr=False)

    @property
    def scope(self) -> dict[str, Any]:
        """What tells the rows of this one from others in a table."""
        group, target = self.answers[0].group, self.answers[0].target
        return dict(zip(SCOPE, (group.sweep, group.workload, target.metric, target.value), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the target as an object, unlike in a table."""
        return self.scope | {"target": self.answers[0].target.to_json()} | shown(self)


@dataclass(frozen=True, kw_only=True)
class Analysis(Findings):
    """What an analysis found, one answer per sweep, group and target; ``suggestions`` are trials that would help,
    at most one per answer, ``None`` where nobody asked."""

    answers: tuple[Answer, ...] = field(repr=False)
    suggestions: tuple[Suggestion, ...] | None = None

    @property
    def headings(self) -> dict[str, str]:
        """Columns of tables that people see under another name than ours."""
        return {}

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"fits": plain(self.answers)}


def read_scopes(
    path: str | os.PathLike[str],
    config: AnalysisConfig,
    targets: Sequence[float | Target] | None,
    others: Sequence[str | os.PathLike[str]] = (),
    metric: str | None = None,
) -> tuple[list[Scope], tuple[str, ...]]:
    """The answers of a folder of results, without noise scales, and what was left out, one line each; with ``others``
    as if all were one sweep, and with a line for everything else that differs between them. ``metric`` is as of
    :func:`analysis.read.results.load`."""
    results = load(path, *others, metric=metric)
    every, notes = answers(results, config, targets=targets, noise=False), [*results.notes]
    if others:
        notes += differing(results.groups)
        every = as_one(every)
    read = []
    for (*labels, _), members in scopes(every):
        title = ", ".join([*filter(None, labels), str(members[0].target).replace("_", " ")])
        read.append(Scope(title=title, answers=tuple(members)))
    return read, tuple(notes)
