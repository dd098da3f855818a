"""What ``cbs schedule judge`` writes and prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from analysis.arrays import UNKNOWN, Quantity
from analysis.phrases import DASH, percent, share, time_unit
from analysis.present import Presentation, presentation
from analysis.present.answers import about, titled
from analysis.present.table import Column, Table
from analysis.questions.schedules import HOUR, Judged, Schedules


@presentation.register
def _(found: Schedules) -> Presentation:
    table = verdicts(found.entries)
    said = f"every interval {percent(found.config.confidence)} %"
    return Presentation(
        shown=[table, *_remarks(found.entries), said, *found.notes],
        tables={"schedules": table},
        latex=("schedules",),
        json="schedules.json",
    )


def verdicts(entries: Sequence[Judged]) -> Table:
    """One row per optimizer, target, schedule and first batch size."""
    rows: list[tuple[Any, ...]] = [(entry, entry.comparison or {}, entry.answer) for entry in entries]
    columns = (
        *about([entry.answer for entry in entries]),
        Column("schedule", heading="batch schedule", name=True),
        Column("choice"),
        Column("batch_size", heading="from B", name=True),
        Column("best_lr", heading="learning rate"),
        Column("at_grid_edge"),
        Column("seeds_reached"),
        Column("seeds"),
        *(_quantity(name, heading) for name, heading in (("steps", "steps"), ("examples", "examples"))),
        _quantity("gamma", "gamma", r"$\gamma$"),
        *(
            Column(name, _path(name, "value"), heading, _path(name, "interval"))
            for name, heading in (
                ("steps_saved", "steps saved"),
                ("examples_saved", "examples saved"),
            )
        ),
        *_hours(entries),
        Column("equal_examples", _path("equal_examples"), "equal examples at B"),
        Column("equal_steps", _path("equal_steps")),
        Column("beats", _path("beats"), "P(saves steps)", text=_probability, wide=True),
        Column("verdict", heading="verdict", text=str, left=True),
        Column("notes", lambda entry, *_: "; ".join(entry.notes)),
    )
    lines = [
        "gamma = (S/S_min - 1)(E/E_min - 1), below 1 where a schedule beats every constant batch size",
        "saved: share of the steps of the best constant batch size at equal examples, of the examples of the best one "
        "at equal steps",
        *(["time saved: against the best constant batch size at equal examples"] if _hours(entries) else []),
    ]
    answers = [entry.answer for entry in entries]
    title = f"Batch schedules against constant batch sizes{titled(answers)}" if entries else ""
    return Table(columns=columns, rows=rows, title=title, lines=lines if entries else ())


def _hours(entries: Sequence[Judged]) -> list[Column]:
    """The time a schedule takes, and what it saves, in one unit; in hours for files."""
    seconds = [each.comparison.seconds.value for each in entries if each.comparison is not None]
    known = [value for value in seconds if value is not None]
    if not known:
        return []
    unit, length = time_unit(known)
    return [
        Column(key, _time(name, "value", per), heading, _time(name, "interval", per))
        for name, words in (("seconds", "time"), ("seconds_saved", "time saved"))
        for key, heading, per in ((name.replace("seconds", "hours"), "", HOUR), ("", f"{words} ({unit})", length))
    ]


def _time(name: str, part: str, per: float) -> Callable[..., object]:
    """Reads a part of a quantity of seconds in another unit."""

    def read(entry: Judged, *_: object) -> object:
        seconds: Quantity = getattr(entry.comparison, name, UNKNOWN)
        return getattr(seconds.times(1 / per), part)

    return read


def _quantity(name: str, heading: str, latex: str = "") -> Column:
    return Column(name, _path(name, "value"), heading, _path(name, "interval"), latex=latex)


def _path(*names: str) -> Callable[..., object]:
    """Reads an attribute of the comparison; ``None`` where there is none."""

    def read(entry: Judged, *_: object) -> object:
        found: object = entry.comparison
        for name in names:
            found = getattr(found, name, None)
        return found

    return read


def _probability(value: float | None) -> str:
    return DASH if value is None else share(value)


def _remarks(entries: Sequence[Judged]) -> list[str]:
    """The notes of every row, each after the name of its schedule."""
    return [
        f"{entry.answer.group.optimizer}, {entry.schedule} from {entry.batch_size}: {note}"
        for entry in entries
        for note in entry.notes
    ]
