"""What the questions share: how a result is framed, and the answers of one sweep, workload and target side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.config import AnalysisConfig
from analysis.estimate.result import Answer, answers, scopes
from analysis.plain import shown
from analysis.read.results import load
from cbs.target import Target

SCOPE = ("sweep", "workload", "metric", "target")
"""Columns that every table begins with, see :func:`scope_columns`."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a question found; the fields of each are keys of its JSON.

    Attributes:
        config: how the numbers were made.
        notes: what was left out, one line each.
    """

    config: AnalysisConfig = field(repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        about = {"confidence": self.config.confidence, "definition": self.config.definition}
        return about | shown(self) | {"notes": list(self.notes)}


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The answers of one sweep, workload and target.

    Attributes:
        title: the target, after what else tells this scope from the others.
        answers: one per optimizer.
    """

    title: str = field(repr=False)
    answers: tuple[Answer, ...] = field(repr=False)

    @property
    def scope(self) -> dict[str, Any]:
        """Columns that every table begins with."""
        return scope_columns(self.answers[0])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the target as an object, unlike in a table."""
        return self.scope | {"target": self.answers[0].target.to_json()} | shown(self)


def scope_columns(answer: Answer) -> dict[str, Any]:
    """What tells the rows of one sweep, workload and target from others in a table."""
    group, target = answer.group, answer.target
    return {"sweep": group.sweep, "workload": group.workload, "metric": target.metric, "target": target.value}


def read_scopes(
    path: str | os.PathLike[str], config: AnalysisConfig, targets: Sequence[float | Target] | None
) -> tuple[list[Scope], tuple[str, ...]]:
    """The answers of a folder of results, without noise scales, and what was left out, one line each."""
    results = load(path)
    found = scopes(answers(results, config, targets=targets, noise=False))
    several = [len({scope[place] for scope in found}) > 1 for place in (0, 1)]
    return [
        Scope(
            title=", ".join([*(scope[place] for place in (0, 1) if several[place]), scope[2].replace("_", " ")]),
            answers=tuple(members),
        )
        for scope, members in found.items()
    ], tuple(results.notes)
