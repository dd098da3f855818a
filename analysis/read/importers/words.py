"""Words of other tools (MLflow, Optuna, W&B, Ax, ClearML, Neptune, Slurm, SageMaker, Kubernetes) or one's own: how a
run ended, and which column says what, which is asked for where titles leave it open, never guessed.
"""

import contextlib
import dataclasses
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from analysis.formatting import plural
from analysis.read import cells
from analysis.read.importers.base import ImportedRun
from analysis.read.importers.settings import Settings
from analysis.read.table import Sheet, read_table
from analysis.read.titles import with_products
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
# Words of ours and of other tools. A pruned trial of Optuna has the value of where it was pruned.
_BOTH = (TrialStatus.FAILED, TrialStatus.PRUNED)


def by_status(
    runs: Sequence[ImportedRun], facts: Sequence[dict[str, Any]], settings: Settings, notes: list[str]
) -> tuple[list[ImportedRun], list[dict[str, Any]]]:
    """Return the runs that count with their facts, in which ``status`` is a ``TrialStatus`` or ``None``.

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
        kept.append((run, about | {"status": TrialStatus(meant) if meant in set(TrialStatus) else None}))
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


_RATE = r"(lr|learning[_ ]?rate)"
_BATCH = r"((global|total|effective)\w*[_ ]?batch\w*|(train_)?batch_?size)"
# What a title says beside the learning rate where it is none, but something about its schedule or search
_ABOUT = "decay|sched|warm|cool|step|iter|epoch|cycl|mult|scale|scaling|ratio|factor|power|gamma|index|id$|range|find"
# Patterns of titles that may mean the same as one of ours, also for one of several optimizers: lr_muon, adam_lr
_RIVALS = {"lr": rf"(.*[./_ ])?{_RATE}([_ ]?(peak|max)|[./_ ](?!{_ABOUT}).*)?", "batch_size": rf"(.*[./])?{_BATCH}"}

_ENDS = rf"(.*[./_ ])?((min|final|end)[_ ]?{_RATE}|{_RATE}[_ ]?(min|final|end))"
_HOW_ENDED = r"(.*[./_ ])?(status|state)"
_PEAK, _WHOLE = "the one that was tuned (at the peak of its schedule)", "the one of all examples of an update"


def settled(source: Path, settings: Settings) -> tuple[Sheet, Settings]:
    """Read a table; return it, and the settings with the column that says how runs ended, if its title and its words
    are such.

    Raises:
        DataError: if another column claims to be the learning rate or the batch size as well, with other numbers, or if
            these look like the end of a schedule, or the examples of one of several passes or devices. Naming a column
            ends that.
    """
    table = with_products(read_table(source), settings.columns.values())
    for name, which in (("lr", _PEAK), ("batch_size", _WHOLE)):
        if name in table.columns and name not in settings.columns:
            for title, row in _doubts(table, name):
                mine, other = (f"{cells.shown(each)} ({table.columns[each][row]})" for each in (name, title))
                raise DataError(
                    f"{table.name}, {table.places[row]}: {mine} and {other} may both be the {name}; say which column "
                    f"is {which} with --column {name}=THEIRS"
                )
    if "status" not in {*settings.columns, *table.columns}:
        for title in table.columns:
            words = {word for cell in table.columns[title] if (word := word_of(cell))}
            # most are known: the others are asked for, but states of a country are none
            known = words & (KNOWN | settings.statuses.keys())
            if re.fullmatch(_HOW_ENDED, title, re.IGNORECASE) and 2 * len(known) > len(words):
                return table, dataclasses.replace(settings, columns={**settings.columns, "status": title})
    return table, settings


def _doubts(table: Sheet, name: str) -> Iterator[tuple[str, int]]:
    """Yield the columns that make it doubtful what our ``name`` is, with a row that shows it: one of the end of a
    schedule if it is the same throughout, any other if it ever differs."""
    for title in table.columns:
        end = name == "lr" and re.fullmatch(_ENDS, title, re.IGNORECASE)
        if title != name and (end or re.fullmatch(_RIVALS[name], title, re.IGNORECASE)):
            alike = {}
            for row, pair in enumerate(zip(table.columns[name], table.columns[title], strict=True)):
                with contextlib.suppress(ValueError):
                    alike[row] = math.isclose(*map(cells.number, pair))
            if not end:
                yield from ((title, row) for row, same in alike.items() if not same)
            elif sum(alike.values()) == len(table.places):
                yield title, 0
