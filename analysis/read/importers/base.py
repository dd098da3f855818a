"""What a format hands over: runs with what the source itself says about them.

:func:`run_of` makes one of a table of measurements; it alone honours what columns are renamed to, whatever the format.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from analysis.arrays import Array
from analysis.read import cells
from analysis.read.importers.files import below
from analysis.read.importers.settings import CONFIG, FACTS, Settings, fact
from analysis.read.table import Sheet, of_rows
from cbs.errors import DataError
from cbs.registry import Registry

ANY_TABLE, COLUMNS, LAYOUT = range(3)
"""How sure a format is of a file: it is a table, it has the columns of the format, it lies and is called as only the
format does."""

_SCHEDULED = "call the column otherwise where it follows a schedule, and give the peak with --set or --runs; or "


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """One training run as the source tells it.

    Attributes:
        name: what the source calls it; unique in the import.
        place: file or address, for messages.
        axis: one entry per measurement, in ``unit``; any order.
        values: the metric at those points; no entry at all where the source has none of this run.
        unit: one of :data:`~analysis.read.importers.settings.AXES`.
        facts: those of :data:`~analysis.read.importers.settings.FACTS` that the source states, unchecked.
        aliases: other names a table of runs may know it by.
        config: the source's own record of the settings, for ``--column lr=config.KEY``.
        max_steps: budget in optimizer updates; ``None`` where the source has none.
        metrics: names that a metric can have there.
        files: that were read; none for a source that is no file.
    """

    name: str
    place: str
    axis: Array = field(default_factory=lambda: np.empty(0))
    values: Array = field(default_factory=lambda: np.empty(0))
    unit: str = "step"
    facts: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    metrics: Iterable[str] = ()
    files: tuple[Path, ...] = ()

    @property
    def names(self) -> list[str]:
        """All it may be known by, its own first."""
        return list(dict.fromkeys((self.name, *self.aliases)))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Why a source looks like one of a format.

    Attributes:
        why: what was seen, in words: ``3 event files``.
        files: that were seen; none for an address. A file that another format is surer of is not this one's.
        certainty: :data:`ANY_TABLE`, :data:`COLUMNS` or :data:`LAYOUT`.
    """

    why: str
    files: frozenset[Path] = frozenset()
    certainty: int = LAYOUT

    @classmethod
    def of(cls, files: Iterable[Path], what: str, certainty: int = LAYOUT) -> Claim | None:
        """The claim on so many files; ``None`` where there is none."""
        names = frozenset(files)
        return cls(why=f"{len(names)} {what}", files=names, certainty=certainty) if names else None


class Importer(Protocol):
    """A format. Implementations have no state.

    Attributes:
        expected: what a source of the format is, for the message where there is none.
        marks: pattern of the names of its files, and what these are called; for a format that is known by them.
    """

    expected: str
    marks: tuple[str, str] = ("", "")

    def claims(self, source: str) -> Claim | None:
        """Why this looks like a source of the format, where it does; used where the format is not named."""
        return Claim.of(below(Path(source), self.marks[0]), self.marks[1])

    def files(self, source: str) -> list[Path]:
        """The file that was named, or those of the format below a folder."""
        return [Path(source)] if Path(source).is_file() else below(Path(source), self.marks[0])

    @abstractmethod
    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """All runs of a source, and what was left out, one line each, in ``notes``. What is missing, damaged or not of
        the format is a ``DataError``: the file, the run, the remedy."""


IMPORTERS: Registry[type[Importer]] = Registry("import format", "analysis.read.importers", derived_from=Importer)


def run_of(
    table: Sheet,
    settings: Settings,
    axis: tuple[str, str] | None = None,
    *,
    name: str,
    named: bool = False,
    facts: Mapping[str, Any] | None = None,
    **about: Any,
) -> ImportedRun:
    """The one run that a table holds.

    Args:
        table: one row per measurement. Rows without the metric are of other measurements, unless ``named``.
        settings: metric, and what columns are called.
        axis: unit, and title of the column, see :meth:`~analysis.read.importers.settings.Settings.axis`; ``step`` where
            it is not given.
        name: of the run, where no column is asked to tell it.
        named: whether the table is laid out for an import: columns with our names of facts count though nobody renamed
            one, the name of the run is found already, and every row has the metric.
        facts: that the format itself states.
        about: further attributes of :class:`ImportedRun`.
    """
    unit, title = axis or settings.axis("step")
    see = f"see --column {unit}=THEIRS"
    if named:
        table.need(settings.measured, "see --metric")
    rows = range(len(table.places)) if named else table.filled(settings.measured)
    if rows:
        table.need(title, see)
    unlike = f"it is empty where {cells.shown(settings.measured)} is not; {see}"
    known_facts, config = dict(facts or {}), about.get("config") or {}
    for each in ("run", *FACTS):
        theirs = settings.columns.get(each, each if named else CONFIG)
        asked = each in settings.columns and theirs not in settings.listed
        if theirs.startswith(CONFIG) or (each == "run" and named) or not (theirs in table.columns or asked):
            continue
        keys = f", or {CONFIG}KEY of {', '.join(sorted(map(str, config)))}" if config else ""
        table.need(theirs, f"see --column {each}=THEIRS{keys}")
        known_facts |= _one(table, theirs, name, each)
    name = str(known_facts.pop("run", name))
    if settings.columns.get("run", "").startswith(CONFIG):
        name = str(lookup(config, settings.columns["run"], f"run {name}"))
    return ImportedRun(
        name=name,
        axis=table.numbers(title, rows, minimum=0.0, where_empty=unlike),
        values=table.numbers(settings.measured, rows),
        unit=unit,
        facts=known_facts,
        **({"place": table.name, "metrics": [each for each in table.columns if each not in ("", title)]} | about),
    )


def in_folder(folder: Path, top: Path, *aliases: str) -> dict[str, Any]:
    """What a run is called that has a folder to itself: its path below the source, or the name of the folder."""
    name, relative = folder.resolve().name, os.path.relpath(folder, folder if top.is_file() else top)
    return {"name": name if relative in (".", "..") else relative, "aliases": (*aliases, str(folder), name)}


def lookup(config: Mapping[str, Any], title: str, run: str) -> Any:
    """A setting by ``config.KEY``, where the key may lead through several levels, joined with dots."""
    value = _setting(config, title.removeprefix(CONFIG).split("."))
    if isinstance(value, Mapping | list):
        raise DataError(f"{run}: {title} is not a single value; name one below it")
    if value is None:
        raise DataError(f"{run} has no {title}; its config has {', '.join(sorted(map(str, config))) or 'nothing'}")
    return value


def _setting(config: Any, path: Sequence[str]) -> Any:
    """What a path leads to; keys may have dots of their own, and the longest that is there counts."""
    if not path or not isinstance(config, Mapping):
        return None if path else config
    ends = (end for end in range(len(path), 0, -1) if ".".join(path[:end]) in config)
    return next((_setting(config[".".join(path[:end])], path[end:]) for end in ends), None)


def joined(name: str, series: Mapping[str, Sequence[tuple[Any, Any]]], metric: str) -> Sheet:
    """The table of series of (step, value) that were stored one by one.

    Every point of the metric is a row that also has what the other series have at its step; points of the others
    follow in rows of their own, so that whatever is the same all along can be read from any.
    """
    others = {title: points for title, points in series.items() if title != metric}
    at = {title: dict(points) for title, points in others.items()}
    rows = [
        {"step": step, metric: value} | {title: frames.get(step) for title, frames in at.items()}
        for step, value in series.get(metric, ())
    ]
    rows += [{"step": step, title: value} for title, points in others.items() for step, value in points]
    return of_rows(name, rows, "point")


def _one(table: Sheet, title: str, run: str, name: str) -> dict[str, Any]:
    """What a column says of a run, by our name of it; nothing where it is empty. A run has one of everything."""
    first = {repr(cell): row for row, cell in reversed(list(enumerate(table.columns[title]))) if not cells.empty(cell)}
    facts: dict[str, Any] = {}
    for row in sorted(first.values()):
        value = table.cell(row, title, lambda cell: fact(name, cell))
        if facts.setdefault(name, value) != value:
            where = _SCHEDULED if name == "lr" else ""
            raise table.error(
                row,
                title,
                f"run {run} has the {name} {facts[name]} and {value}; a run has one; {where}tell the runs apart in the "
                "column 'run', or correct the cell",
            )
    return facts
