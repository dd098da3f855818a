"""A table of measurements -> a run: the one place that honours what columns are renamed to, whatever the format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.read import cells
from analysis.read.importers.base import EMPTY, Run
from analysis.read.importers.settings import CONFIG, FACTS, Settings, fact
from analysis.read.table import Sheet, of_rows
from cbs.errors import DataError


def run_of(
    table: Sheet,
    settings: Settings,
    axis: tuple[str, str],
    *,
    name: str,
    named: bool = False,
    facts: Mapping[str, Any] | None = None,
    **about: Any,
) -> Run:
    """The one run that a table holds.

    Args:
        table: one row per measurement. Rows without the metric are of other measurements, unless ``named``.
        settings: metric, and what columns are called.
        axis: unit, and title of the column, see :meth:`~analysis.read.importers.settings.Settings.axis`.
        name: of the run, where no column is asked to tell it.
        named: whether the table is laid out for an import: columns with our names of facts count though nobody renamed
            one, the name of the run is found already, and every row has the metric.
        facts: that the format itself states.
        about: further attributes of :class:`~analysis.read.importers.base.Run`.

    Raises:
        DataError: naming table, row and column, if a column that is asked for is missing, or a cell is not what it must
            be.
    """
    unit, title = axis
    see = f"see --column {unit}=THEIRS"
    if named:
        table.need(settings.measured, "see --metric")
    rows = range(len(table.places)) if named else table.filled(settings.measured)
    if rows:
        table.need(title, see)
    unlike = f"it is empty where {cells.shown(settings.measured)} is not; {see}"
    told, config = dict(facts or {}), about.get("config") or {}
    for each in ("run", *FACTS):
        theirs = settings.columns.get(each, each if named else CONFIG)
        asked = each in settings.columns and theirs not in settings.listed
        if theirs.startswith(CONFIG) or (each == "run" and named) or not (theirs in table.columns or asked):
            continue
        keys = f", or {CONFIG}KEY of {', '.join(sorted(map(str, config)))}" if config else ""
        table.need(theirs, f"see --column {each}=THEIRS{keys}")
        told |= _one(table, theirs, name, each)
    name = str(told.pop("run", name))
    if settings.columns.get("run", "").startswith(CONFIG):
        name = str(lookup(config, settings.columns["run"], f"run {name}"))
    return Run(
        name=name,
        axis=table.numbers(title, rows, minimum=0.0, where_empty=unlike) if rows else EMPTY,
        values=table.numbers(settings.measured, rows) if rows else EMPTY,
        unit=unit,
        facts=told,
        **({"place": table.name, "metrics": [each for each in table.columns if each not in ("", title)]} | about),
    )


def in_folder(folder: Path, top: Path, *aliases: str) -> dict[str, Any]:
    """What a run is called that has a folder to itself: its path below the source, or the name of the folder."""
    name, relative = folder.resolve().name, os.path.relpath(folder, folder if top.is_file() else top)
    return {"name": name if relative in (".", "..") else relative, "aliases": (*aliases, str(folder), name)}


def lookup(config: Mapping[str, Any], title: str, run: str) -> Any:
    """A setting by ``config.KEY``, where the key may lead through several levels, joined with dots.

    Raises:
        DataError: if it is not there, or is no single value.
    """
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
        {"step": step, metric: value} | {title: found.get(step) for title, found in at.items()}
        for step, value in series.get(metric, ())
    ]
    rows += [{"step": step, title: value} for title, points in others.items() for step, value in points]
    return of_rows(name, rows, "point")


def _one(table: Sheet, title: str, run: str, name: str) -> dict[str, Any]:
    """What a column says of a run, by our name of it; nothing where it is empty. A run has one of everything."""
    first = {repr(cell): row for row, cell in reversed(list(enumerate(table.columns[title]))) if not cells.empty(cell)}
    found: dict[str, Any] = {}
    for row in sorted(first.values()):
        value = table.cell(row, title, lambda cell: fact(name, cell))
        if found.setdefault(name, value) != value:
            raise table.error(
                row,
                title,
                f"run {run} has the {name} {found[name]} and {value}; a run has one; tell the runs apart in the column "
                "'run', or correct the cell",
            )
    return found
