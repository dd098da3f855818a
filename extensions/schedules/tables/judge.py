"""Presentation of ``cbs schedule judge``: what it writes and prints."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.formatting import percent, share, time_unit
from analysis.present import Presentation, presentation
from analysis.present.answers import about, titled
from analysis.present.table import Column, Table, files, quantity
from extensions.schedules.judge.answer import HOUR, Judged, Schedules


@presentation.register
def _(schedules: Schedules) -> Presentation:
    table = verdicts(schedules.entries)
    remarks = [
        f"{entry.answer.group.optimizer}, {entry.schedule} from {entry.batch_size}: {note}"
        for entry in schedules.entries
        for note in entry.notes
    ]
    interval_note = f"every interval {percent(schedules.config.confidence)} %"
    return Presentation(
        shown=[table, *remarks, interval_note, *schedules.notes],
        tables={"schedules": table},
        latex=("schedules",),
        json="schedules.json",
    )


def verdicts(entries: Sequence[Judged]) -> Table:
    """Return a table with one row per optimizer, target, schedule and first batch size."""
    answers, times = [entry.answer for entry in entries], _times(entries)
    columns = (
        *about(answers),
        Column("schedule", heading="batch schedule", name=True),
        Column("choice"),
        Column("batch_size", heading="from B", name=True),
        Column("best_lr", heading="learning rate"),
        *files("at_grid_edge", "seeds_reached", "seeds"),
        quantity("steps", "steps", "comparison.steps"),
        quantity("examples", "examples", "comparison.examples"),
        quantity("gamma", "gamma", "comparison.gamma", r"$\gamma$"),
        quantity("steps_saved", "steps saved", "comparison.steps_saved"),
        quantity("examples_saved", "examples saved", "comparison.examples_saved"),
        *times,
        Column("equal_examples", "comparison.equal_examples", "equal examples at B"),
        Column("equal_steps", "comparison.equal_steps"),
        Column("beats", "comparison.beats", "P(saves steps)", text=share, wide=True),
        Column("verdict", heading="verdict", left=True),
        Column("notes", lambda entry, _: "; ".join(entry.notes)),
    )
    lines = [
        "gamma = (S/S_min - 1)(E/E_min - 1), below 1 where a schedule beats every constant batch size",
        "saved: share of the steps of the best constant batch size at equal examples, and of the examples of the best "
        "one at equal steps",
        *(["time saved: against the best constant batch size at equal examples"] if times else []),
    ]
    title = f"Batch schedules against constant batch sizes{titled(answers)}" if entries else ""
    rows = list(zip(entries, answers, strict=True))
    return Table(columns=columns, rows=rows, title=title, lines=lines if entries else ())


def _times(entries: Sequence[Judged]) -> list[Column]:
    """Return columns of the time a schedule takes, and of what it saves, in one unit; in hours for files."""
    seconds = [each.comparison.seconds.value for each in entries if each.comparison is not None]
    known = [value for value in seconds if value is not None]
    if not known:
        return []
    unit, length = time_unit(known)
    return [
        quantity(key, heading, f"comparison.{name}", times=1 / per)
        for name, words in (("seconds", "time"), ("seconds_saved", "time saved"))
        for key, heading, per in ((name.replace("seconds", "hours"), "", HOUR), ("", f"{words} ({unit})", length))
    ]
