"""What may stand side by side: the answers of one sweep, workload and target, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.estimate.diagnosis import Verdict
from analysis.estimate.result import Answer


def scope_columns(answer: Answer) -> dict[str, Any]:
    """What tells the rows of one sweep, workload and target from others in a table."""
    return {
        "sweep": answer.group.sweep,
        "workload": answer.group.workload,
        "metric": answer.target.metric,
        "target": answer.target.value,
    }


def title(scope: Sequence[Answer], scopes: Sequence[Sequence[Answer]]) -> str:
    """The target, after what else tells a scope from the others."""
    group = scope[0].group
    parts = []
    for name in ("sweep", "workload"):
        if len({getattr(other[0].group, name) for other in scopes}) > 1:
            parts.append(str(getattr(group, name)))
    return ", ".join([*parts, str(scope[0].target).replace("_", " ")])


def verdicts(answers: Sequence[Answer]) -> list[str]:
    """What is said against the answers, one line each."""
    return [
        f"{answer.group.optimizer}: {answer.verdict}: {answer.advice}"
        for answer in answers
        if answer.verdict is not Verdict.OK
    ]
