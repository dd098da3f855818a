"""How a run ended, in the words of other tools (MLflow, Optuna, W&B, Ax, ClearML, Neptune, Slurm, SageMaker,
Kubernetes) or one's own."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from analysis.formatting import plural
from analysis.read import cells
from analysis.read.importers.base import ImportedRun
from analysis.read.importers.settings import Settings
from cbs.errors import DataError
from cbs.trial.record import TrialStatus

FINISHED = ("FINISHED", "COMPLETE", "COMPLETED", "DONE", "OK", "SUCCESS", "SUCCEEDED", "PUBLISHED", "INACTIVE")
"""The curve of such a run says how it ended."""

UNFINISHED = (
    *("RUNNING", "INPROGRESS", "IN_PROGRESS", "SCHEDULED", "PENDING", "WAITING", "QUEUED", "PAUSED", "STOPPED"),
    *("FAIL", "CRASHED", "ERROR", "KILLED", "CANCELLED", "CANCELED", "ABORTED", "TIMEOUT", "PREEMPTED", "PREEMPTING"),
    *("NODE_FAIL", "BOOT_FAIL", "EARLY_STOPPED", "ABANDONED", "CANDIDATE", "STAGED", "CREATED", "ACTIVE"),
)
KNOWN = frozenset({*FINISHED, *UNFINISHED, *TrialStatus})
_BOTH = (TrialStatus.FAILED, TrialStatus.PRUNED)
"""Words of ours and of other tools. A pruned trial of Optuna has the value of where it was pruned."""


def by_status(
    runs: Sequence[ImportedRun], facts: Sequence[dict[str, Any]], settings: Settings, notes: list[str]
) -> tuple[list[ImportedRun], list[dict[str, Any]]]:
    """Return the runs that count with their facts, in which ``status`` is a ``TrialStatus`` or missing.

    Words mean what ``--status`` says, or what they mean in other tools; where there are any of those, ``FAILED`` and
    ``PRUNED`` are theirs, too. A run that did not finish by a word of theirs is left out, with a note.
    """
    words = [word_of(each.get("status")) for each in facts]
    for word, run in zip(words, runs, strict=True):
        if word and word not in KNOWN | settings.statuses.keys():
            raise DataError(
                f"run {run.name} ({run.place}): the status {cells.shown(word)} is none of {', '.join(TrialStatus)}; "
                f"say what it means with --status {shlex.quote(word)}=BUDGET_EXHAUSTED (it ran to its end) or =FAILED"
            )
    theirs = any(word not in {*TrialStatus, *settings.statuses, ""} for word in words)
    kept, out = [], Counter[str]()
    for word, run, about in zip(words, runs, facts, strict=True):
        meant = settings.statuses.get(word, "FAIL" if theirs and word in _BOTH else word)
        if meant in UNFINISHED:
            out[word] += 1
            continue
        of_ours = {"status": TrialStatus(meant)} if meant in set(TrialStatus) else {}
        kept.append((run, {name: value for name, value in about.items() if name != "status"} | of_ours))
    if out:
        told = ", ".join(f"{count} {word}" for word, count in out.items())
        notes.append(
            f"left out {plural(out.total(), 'run')} that did not finish, by the status: {told}; --status "
            f"{next(iter(out))}=BUDGET_EXHAUSTED takes such a run as it is"
        )
    if not kept:
        raise DataError(f"no run is left: {notes[-1]}")
    return [run for run, _ in kept], [about for _, about in kept]


def word_of(cell: Any) -> str:
    """Return the status in a cell in capitals; empty if there is none."""
    # Slurm says who: CANCELLED by 1000
    return "" if cells.empty(cell) else str(cell).strip().upper().partition(" BY ")[0]
