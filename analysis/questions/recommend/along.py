"""What ``cbs local`` wrote about a folder, beside a batch size that is recommended for a whole run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.estimate.result import Answer
from analysis.phrases import number
from analysis.questions.recommend.plans import Plan
from cbs.checksum import read_json
from cbs.errors import ResultsError

LocalCurves = Mapping[tuple[str, str], Mapping[str, Any]]
"""Local critical batch sizes by workload and optimizer."""


def local_curves(path: Path) -> LocalCurves:
    """Return the curves of ``cbs local`` by workload and optimizer; none where it was not called for this folder.

    Raises:
        ResultsError: if the file cannot be read.
    """
    file = path / "analysis" / "local" / "local.json"
    if not file.exists():
        return {}
    try:
        return {
            (scope["workload"], curve["optimizer"]): {
                "places": [(each["examples"], each["critical_batch_size"]) for each in curve["checkpoints"]],
                "within": f"{number(scope['tolerance'])} {scope['metric_unit']}".strip(),
                "unit": scope["example_unit"],
                "folder": file.parent,
            }
            for scope in read_json(file)["scopes"]
            for curve in scope["curves"]
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ResultsError(f"{file} is not what 'cbs local' writes: delete it, or run cbs local again") from error


def beside(answer: Answer, plans: Sequence[Plan], curves: LocalCurves) -> Iterator[str]:
    """Yield the local critical batch sizes of the optimizer, and which recommended batch sizes are above the first."""
    curve = curves.get((answer.group.workload, answer.group.optimizer))
    if curve is None:
        return
    said = ", ".join(f"{_in_words(local)} at {number(seen)}" for seen, local in curve["places"])
    yield f"local critical batch size along a run, by {curve['unit']}s seen (within {curve['within']}): {said}"
    above = {}
    for size in sorted({plan.batch_size for plan in plans}):
        if seen := [seen for seen, local in curve["places"] if size > _at_most(local)]:
            above[size] = f"{size} up to {number(seen[-1])}"
    if above:
        yield (
            f"batch sizes above it, which fall behind smaller ones at equal data: {', '.join(above.values())} "
            f"{curve['unit']}s; plan smaller ones there: cbs schedule plan --curve, with a table in {curve['folder']}"
        )


def _at_most(local: dict[str, Any]) -> float:
    """Return the local critical batch size, or its upper bound if only that is known, or infinity."""
    value, (low, high) = local["value"], local["interval"]
    return float(value or (high if high is not None and low is None else "inf"))


def _in_words(local: dict[str, Any]) -> str:
    value, (low, high) = local["value"], local["interval"]
    if value is not None:
        return number(value)
    return "unknown" if low is high is None else f"below {number(high)}" if low is None else f"above {number(low)}"
