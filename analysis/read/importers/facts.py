"""What is known about each run: batch size, optimizer, learning rate, seed, ...

Four places may tell: the source itself (with ``--column lr=config.KEY`` also its own record of the settings), a table
of runs, the run's name, and constants. They may not contradict one another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.read import cells
from analysis.read.importers.base import CONFIG, FACTS, Run, fact
from analysis.read.importers.runs import lookup
from analysis.read.importers.settings import Settings
from analysis.read.table import Sheet, read_table
from cbs.errors import ConfigError, DataError

REQUIRED = ("batch_size", "optimizer", "lr")
DEFAULTS: dict[str, Any] = {"seed": 0, "workload": "imported", "parameters": None, "status": None}

_NUMBERS = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SHAPES = {"batch_size": r"\d+", "seed": r"\d+", "parameters": r"\d+", "lr": _NUMBERS}
_SHOWN = 3
_WAYS = "give it in a column of the source, with --runs FILE, --pattern or --set NAME=VALUE"


def facts_of(runs: Sequence[Run], settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """All of :data:`~analysis.read.importers.base.FACTS` for every run, and notes.

    Raises:
        ConfigError: if something is still missing, named for all runs at once, or the pattern is unusable.
        DataError: if a value is out of its domain or two places contradict one another.
    """
    listed, notes = _listed(runs, settings)
    pattern = None if settings.pattern is None else _compiled(settings.pattern)
    found = []
    for run, row in zip(runs, listed, strict=True):
        told = [(f"in {run.place}", _stated(run, settings)), (f"in {settings.runs}", row)]
        if pattern is not None:
            told.append(("by --pattern", _matched(run, pattern, str(settings.pattern))))
        told.append(("by --set", {name: value for name, value in settings.constants.items() if name in FACTS}))
        found.append(_agreed(run, told))
    _require(runs, found)
    if settings.batch_unit == "tokens":
        found = [_in_examples(run, facts, settings) for run, facts in zip(runs, found, strict=True)]
    return [DEFAULTS | facts for facts in found], notes


def _stated(run: Run, settings: Settings) -> dict[str, Any]:
    """What the source says, with what ``--column ours=config.KEY`` points at."""
    facts = dict(run.facts)
    for name in FACTS:
        theirs = settings.columns.get(name, "")
        if theirs.startswith(CONFIG):
            facts[name] = lookup(run.config, theirs, f"run {run.name} ({run.place})")
    return facts


def _agreed(run: Run, told: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    facts: dict[str, tuple[Any, str]] = {}
    for where, row in told:
        for name, cell in row.items():
            if cells.empty(cell):
                continue
            try:
                value = fact(name, cell)
            except ValueError as error:
                raise DataError(f"run {run.name}, {name} {where}: {error}; correct it") from None
            before = facts.setdefault(name, (value, where))
            if before[0] != value:
                raise DataError(f"run {run.name}: {name} is {before[0]} {before[1]} and {value} {where}; keep one")
    return {name: value for name, (value, _) in facts.items()}


def _require(runs: Sequence[Run], found: Sequence[Mapping[str, Any]]) -> None:
    missing: dict[tuple[str, ...], list[str]] = {}
    for name in REQUIRED:
        without = tuple(run.name for run, facts in zip(runs, found, strict=True) if name not in facts)
        if without:
            missing.setdefault(without, []).append(name)
    if missing:
        told = [f"{', '.join(names)} of {_some(without, len(runs))}" for without, names in missing.items()]
        raise ConfigError(f"not known: {'; '.join(told)}; {_WAYS}")


def _some(names: Sequence[str], total: int) -> str:
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{len(names)} of {total} runs ({', '.join(names[:_SHOWN])}{more})"


def _in_examples(run: Run, facts: dict[str, Any], settings: Settings) -> dict[str, Any]:
    tokens, per_example = facts["batch_size"], settings.tokens_per_example or 1
    if tokens % per_example:
        raise DataError(
            f"run {run.name}: a batch of {tokens} tokens is not a whole number of examples of {per_example} tokens; "
            "correct --tokens-per-example, or the batch size"
        )
    return facts | {"batch_size": tokens // per_example}


def _listed(runs: Sequence[Run], settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """The row of ``--runs`` of every run; empty where it has none."""
    if settings.runs is None:
        return [{} for _ in runs], []
    table = read_table(settings.runs)
    rows = _rows(table, settings)
    names = [dict.fromkeys((run.name, *run.aliases)) for run in runs]
    owners: dict[str, int] = {}
    for entry in names:
        for name in entry:
            owners[name] = owners.get(name, 0) + 1
    found = []
    for run, entry in zip(runs, names, strict=True):
        named = [name for name in entry if name in rows]
        for name in named:
            if owners[name] > 1:
                raise DataError(f"{table.name}: {owners[name]} runs are called {name}; give the path, as in {run.name}")
        found.append(rows[named[0]] if named else {})
    unknown = [name for name in rows if name not in owners]
    notes = [f"{table.name}: {len(unknown)} rows match no run: {', '.join(unknown[:_SHOWN])}"] if unknown else []
    return found, notes


def _rows(table: Sheet, settings: Settings) -> dict[str, dict[str, Any]]:
    def title(name: str) -> str:
        theirs = settings.columns.get(name, name)
        return theirs if theirs in table.columns else name

    column = title("run")
    facts = {name: title(name) for name in FACTS if title(name) in table.columns}
    rows: dict[str, dict[str, Any]] = {}
    for index, cell in enumerate(table.need(column, "it needs one with the names of the runs")):
        name = "" if cells.empty(cell) else str(cell).strip()
        if not name or name in rows:
            raise table.error(index, column, f"run {name!r} is {'there twice' if name else 'empty'}")
        rows[name] = {fact: table.columns[theirs][index] for fact, theirs in facts.items()}
    return rows


def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression; ``*`` stands for anything."""
    text, seen = "", set()
    for part in re.split(r"(\{[^{}]*\}|\*)", pattern):
        name = part[1:-1]
        if part == "*":
            text += ".*"
        elif not (part.startswith("{") and part.endswith("}")):
            text += re.escape(part)
        elif name not in FACTS:
            raise ConfigError(f"--pattern {pattern!r}: {part} is unknown; known are {', '.join(FACTS)}")
        elif name in seen:
            raise ConfigError(f"--pattern {pattern!r} has {part} twice")
        else:
            seen.add(name)
            text += f"(?P<{name}>{_SHAPES.get(name, '[^/]+?')})"
    if not seen:
        raise ConfigError(
            f"--pattern {pattern!r} names nothing; as in {{optimizer}}-b{{batch_size}}-lr{{lr}}-s{{seed}}"
        )
    return re.compile(rf"(?:.*/)?{text}", re.ASCII)


def _matched(run: Run, pattern: re.Pattern[str], text: str) -> dict[str, Any]:
    for name in dict.fromkeys((run.name, *run.aliases)):
        match = pattern.fullmatch(name)
        if match:
            return match.groupdict()
    raise DataError(f"run {run.name} does not match --pattern {text!r}; rename it, or use --runs FILE instead")
