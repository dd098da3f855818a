"""Common base of all findings: how a result is presented, and answers of one sweep, workload and target side by
side."""

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
from cbs.registry.extensions import load as load_module
from cbs.trial.target import Target

SCOPE = ("sweep", "workload", "metric", "target")
"""Columns with which every table begins, see :class:`Scope`."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Base class of findings; the fields of subclasses become keys of the JSON output.

    ``config`` is the configuration of the analysis, and ``notes`` say what was left out, one line each.
    """

    config: AnalysisConfig = field(repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    def _repr_html_(self) -> str:
        """What a notebook shows, made by the machinery that stands above this room."""
        return str(load_module("analysis.present.notebook").html(self))

    def to_json(self) -> dict[str, Any]:
        about = {"confidence": self.config.confidence, "definition": self.config.definition}
        return about | shown(self) | {"notes": list(self.notes)}


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The answers of one sweep, workload and target, one per optimizer.

    ``title`` is the target, preceded by whatever distinguishes the scope from others.
    """

    title: str = field(repr=False)
    answers: tuple[Answer, ...] = field(repr=False)

    @property
    def scope(self) -> dict[str, Any]:
        """Columns that identify this scope in a table."""
        group, target = self.answers[0].group, self.answers[0].target
        return dict(zip(SCOPE, (group.sweep, group.workload, target.metric, target.value), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; the target is an object here, unlike in a table."""
        return self.scope | {"target": self.answers[0].target.to_json()} | shown(self)


@dataclass(frozen=True, kw_only=True)
class Analysis(Findings):
    """Result of an analysis, with one answer per sweep, group and target.

    ``suggestions`` are trials that would help, at most one entry per answer.
    """

    answers: tuple[Answer, ...] = field(repr=False)
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def headings(self) -> dict[str, str]:
        """Columns of tables that are displayed under another name."""
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
    """Return the answers of a folder of results, without noise scales, and notes on what was left out.

    With ``others`` the folders are treated as one sweep, and notes list everything else that differs between them.
    ``metric`` is as for :func:`analysis.read.results.load`.
    """
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
