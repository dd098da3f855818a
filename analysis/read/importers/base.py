"""What a format provides: runs with what the source itself says about them.

:func:`run_of` makes a run from a table of measurements; renaming of columns is handled there, for all formats.
"""

from __future__ import annotations

import dataclasses
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from analysis.formatting import flat
from analysis.quantities import Array
from analysis.read import cells
from analysis.read.importers.files import below
from analysis.read.importers.settings import AXES, CONFIG, FACTS, Settings, fact
from analysis.read.table import Sheet, of_rows
from analysis.read.titles import factors, is_column, of_part, product, with_products
from cbs.errors import ConfigError, DataError
from cbs.registry import Registry

# How certain a format is that a file is its own: it has lines that a program prints, which count only if there is
# nothing else; it is some table; it has the format's columns; or its name and place are those of the format only.
PRINTED, ANY_TABLE, COLUMNS, LAYOUT = range(4)

ASK_SECONDS = 10.0
"""Time between two questions to the server that has an online run."""

_COUNTERS = re.compile(r"(.*[/._ ])?(global_?)?(step|iter|iteration|update)s?", re.IGNORECASE)
# Metric that says what it is drawn against in place of updates: Megatron-LM logs `lm loss vs samples`, DeepSpeed
# `Train/Samples/train_loss`, in a CSV file `Train_Samples_train_loss`.
_AGAINST = re.compile(r".*\b(vs|by)[ _](samples|examples|tokens)\b.*|train[/_](samples)[/_].*", re.IGNORECASE)

_AMONG = "distinguish the runs in the column 'run'"
_ALONE = "of several runs make a file each, or one CSV table with a column 'run'"
_FROM_ZERO = (
    "{} from 0: 1 was added to each, so that steps count the updates made; if the runs log a step of their own, give "
    "it with --column step=THEIRS"
)
_SCHEDULED = "rename the column if it follows a schedule, and give the peak with --set or --runs; or "


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """One training run as described by the source.

    Attributes:
        name: name in the source; unique in the import.
        place: file or address, for messages.
        axis: one entry per measurement, in ``unit``; in any order.
        values: the metric at those points; empty if the source has none for this run.
        unit: one of :data:`~analysis.read.importers.settings.AXES`.
        facts: those of :data:`~analysis.read.importers.settings.FACTS` that the source states, unchecked.
        aliases: other names by which a table of runs may refer to it.
        config: the source's own record of the settings, for ``--column lr=config.KEY``.
        max_steps: budget in optimizer updates; ``None`` if the source does not give it.
        metrics: names of the metrics in the source.
        counted: largest step to which anything else in the source was counted; 0 if nothing is known of that.
        files: files that were read; none if the source is not a file.
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
    counted: float = 0.0
    files: tuple[Path, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return all names by which it may be known, its own first."""
        return list(dict.fromkeys((self.name, *self.aliases)))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Why a source seems to be of a format, in words: ``3 event files``; with the files that were found, none for an
    address. A file goes to the format that is most certain of it: :data:`PRINTED` up to :data:`LAYOUT`."""

    why: str
    files: frozenset[Path] = frozenset()
    certainty: int = LAYOUT

    @classmethod
    def of(cls, files: Iterable[Path], what: str, certainty: int = LAYOUT) -> Claim | None:
        """Return a claim on these files, which ``what`` names in the plural; ``None`` if there are none."""
        names = frozenset(files)
        if len(names) == 1:
            what = re.sub(r"\b(file|table)s\b", r"\1", what, count=1)
        return cls(why=f"{len(names)} {what}", files=names, certainty=certainty) if names else None


class Importer(Protocol):
    """An import format. Implementations have no state but what stands in parentheses after their name.

    Attributes:
        expected: description of a source of the format, for the message if there is none.
        marks: patterns of the names of its files, and what such files are called.
        form: what stands in parentheses after the name of the format, which is then the argument of the constructor.
        has_studies: whether it has studies of several trials at a batch size, of which the first few may be asked for.
        also: another name by which ``cbs sweep --reads`` knows it.
        address: how a program says where its online run is, whose file is empty until it ends: the groups, joined by
            slashes, are a source; ``None`` if there is no server.
    """

    expected: str
    marks: tuple[tuple[str, ...], str] = ((), "")
    form: str = ""
    has_studies: bool = False
    also: str = ""
    address: re.Pattern[bytes] | None = None

    def claims(self, source: str, settings: Settings) -> Claim | None:
        """Return why this seems to be a source of the format, or ``None``; used if the user names no format."""
        return Claim.of(below(Path(source), *self.marks[0]), self.marks[1])

    def files(self, source: str) -> list[Path]:
        """Return the given file, or all files of the format below a folder."""
        return [Path(source)] if Path(source).is_file() else below(Path(source), *self.marks[0])

    def on_following(self, surroundings: Mapping[str, str]) -> str:
        """Return what to know before programs with these environment variables are followed; empty if nothing."""
        return ""

    @abstractmethod
    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[ImportedRun]:
        """Yield all runs of a source; ``notes`` gets one line for everything left out. Raises ``DataError``, with file,
        run and remedy, for what is missing, damaged or not of this format."""


IMPORTERS: Registry[type[Importer]] = Registry("import format", "analysis.read.importers", derived_from=Importer)


def importer(format: str) -> Importer:
    """Return the importer of a format; parentheses after its name hold what it is given: ``stdout(step=..., ...)``.

    Raises:
        ConfigError: if the name is unknown, or the format takes nothing.
    """
    name, opening, rest = format.strip().partition("(")
    made = IMPORTERS[name]
    if opening and not made.form:
        raise ConfigError(f"the format {name} takes nothing in parentheses, got {format!r}")
    return made(rest.removesuffix(")")) if made.form else made()  # type: ignore[call-arg]


def run_of(
    table: Sheet,
    settings: Settings,
    axis: tuple[str, str],
    *,
    name: str,
    named: bool = False,
    facts: Mapping[str, Any] | None = None,
    **about: Any,
) -> ImportedRun:
    """Return the single run that a table holds, with one row per measurement.

    Args:
        axis: unit and title of the column, see :meth:`~analysis.read.importers.settings.Settings.axis`.
        name: name of the run, unless a column is named to give it.
        named: whether the table was made for an import: columns named like facts are used even if not renamed, the name
            of the run is already known, and every row has the metric. Else rows without it are of other measurements.
        facts: facts that the format itself states; ``about`` has further attributes of :class:`ImportedRun`.
    """
    unit, title = axis
    table = with_products(table, settings.columns.values())
    size = settings.columns.get("batch_size", "batch_size" if named else "")
    known = settings.columns.get("batch_size") == "batch_size" or size not in table.columns
    if words := "" if known else of_part(size, table.columns):
        raise DataError(f"{table.name}: {words}")
    if (said := _AGAINST.fullmatch(settings.measured)) and unit == "step" and not {*AXES} & settings.columns.keys():
        against = (said[2] or said[3]).lower()
        counts = "tokens" if against == "tokens" else "examples"
        raise DataError(
            f"{settings.measured!r}: by its name it is drawn against {against}, not updates: say so with --column "
            f"{counts}={title}, or with --column step={title} that it is not"
        )
    see = f"see --column {unit}=THEIRS"
    if named:
        table.need(settings.measured, "see --metric")
    rows = table.filled(settings.measured)
    # a run that failed has no value, and its row says so
    if named and (rows or settings.columns.get("status", "status") not in table.columns):
        rows = [*range(len(table.places))]
    if rows:
        table.need(title, see)
    unlike = f"it is empty where {cells.shown(settings.measured)} is not; {see}"
    known_facts, config = dict(facts or {}), about.get("config") or {}
    for each in ("run", *FACTS):
        theirs = settings.columns.get(each, each if named else CONFIG)
        asked = each in settings.columns and not is_column(theirs, settings.listed)
        config_key = theirs.startswith(CONFIG) and theirs not in table.columns  # W&B exports columns of that name, too
        if config_key or (each == "run" and named) or not (theirs in table.columns or asked):
            continue
        keys = f", or {CONFIG}KEY of {', '.join(sorted(map(str, config)))}" if config else ""
        table.need(theirs, f"see --column {each}=THEIRS{keys}")
        known_facts |= _one(table, theirs, name, each, _AMONG if named else _ALONE)
    name = str(known_facts.pop("run", name))
    if (titled := settings.columns.get("run", "")).startswith(CONFIG) and titled not in table.columns:
        name = str(lookup(config, titled, f"run {name}"))
    metrics = [each for each in table.columns if each not in ("", title)]
    beside = [table.columns[each] for each in metrics if len(rows) > 1 and _COUNTERS.fullmatch(each)]
    most = (pd.to_numeric(pd.Series(column, dtype=object), errors="coerce").max() for column in beside)
    of_table = {"place": table.name, "metrics": metrics, "counted": max((n for n in most if n == n), default=0.0)}
    return ImportedRun(
        name=name,
        axis=table.numbers(title, rows, minimum=0.0, where_empty=unlike),
        values=table.numbers(settings.measured, rows),
        unit=unit,
        facts=known_facts,
        **{**of_table, **about},
    )


def axis_of(table: Sheet, settings: Settings) -> tuple[str, str]:
    """Return unit and title of the axis, as named by the user, or by any of our names that the table has."""
    unit = next((name for name in AXES if name in table.columns), "step")
    return settings.axis(unit, unit)


def in_file(path: Path, source: str) -> dict[str, Any]:
    """Return name, aliases and files of a run that has a file to itself: its name, or its path below the source."""
    name = path.name if path == Path(source) else str(path.relative_to(source))
    return {"name": name, "aliases": (str(path), path.stem), "files": (path,)}


def in_folder(folder: Path, top: Path, *aliases: str) -> dict[str, Any]:
    """Return name and aliases of a run that has a folder to itself: its path below the source, or the folder's name."""
    name, relative = folder.resolve().name, os.path.relpath(folder, folder if top.is_file() else top)
    return {"name": name if relative in (".", "..") else relative, "aliases": (*aliases, str(folder), name)}


def lookup(config: Mapping[str, Any], title: str, run: str) -> Any:
    """Look up a setting by ``config.KEY``; the key may lead through several levels, joined with dots."""
    known = {f"{CONFIG}{key}": value for key, value in flat(config)}
    if parts := factors(title, known):
        return product(parts, lambda part: known[part])
    value = known.get(title)
    if isinstance(value, list | dict) or any(key.startswith(f"{title}.") for key in known):
        raise DataError(f"{run}: {title} is not a single value; name one below it")
    if value is None:
        raise DataError(f"{run} has no {title}; its config has {', '.join(sorted(map(str, config))) or 'nothing'}")
    return value


def from_zero(run: ImportedRun, notes: list[str], who: str = "a Trainer counts the steps of its logger") -> ImportedRun:
    """Return a run that counts from 0 with its steps as updates made; a note says so, and ``who`` does it."""
    if len(run.values):
        notes.append(_FROM_ZERO.format(who))
    return dataclasses.replace(run, axis=run.axis + 1)


def joined(name: str, series: Mapping[str, Sequence[tuple[Any, Any]]], metric: str) -> Sheet:
    """Join series of (step, value) that were stored separately into one table.

    Every point of the metric becomes a row with the values of the other series at its step. Points of the other series
    follow in rows of their own, so that values that are constant along the run can be read from any row.
    """
    others = {title: points for title, points in series.items() if title != metric}
    at = {title: dict(points) for title, points in others.items()}
    rows = [
        {"step": step, metric: value} | {title: frames.get(step) for title, frames in at.items()}
        for step, value in series.get(metric, ())
    ]
    rows += [{"step": step, title: value} for title, points in others.items() for step, value in points]
    return of_rows(name, rows, "point")


def _one(table: Sheet, title: str, run: str, name: str, remedy: str) -> dict[str, Any]:
    """Return the value of a column for a run, by our name; nothing if it is empty. A run must have a single value."""
    column = table.columns[title]
    first = {repr(cell): row for row, cell in reversed(list(enumerate(column)))}
    facts: dict[str, Any] = {}
    for row in sorted(row for row in first.values() if not cells.empty(column[row])):
        value = table.cell(row, title, lambda cell: fact(name, cell))
        if facts.setdefault(name, value) != value:
            where = _SCHEDULED if name == "lr" else ""
            raise table.error(
                row,
                title,
                f"run {run} has the {name} {facts[name]} and {value}; a run has one; {where}{remedy}, or correct the "
                "cell",
            )
    return facts
