"""Facts about each run: batch size, optimizer, learning rate, seed, ...

They may come from four places: the source itself (with ``--column lr=config.KEY`` also its own record of the settings),
a table of runs, the run's name, and constants. These must not contradict one another.
"""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.formatting import flat
from analysis.read import cells
from analysis.read.importers.base import ImportedRun, lookup
from analysis.read.importers.settings import CONFIG, FACTS, Settings, fact
from analysis.read.importers.words import by_status, settled
from analysis.read.titles import of_part, whole_batch
from cbs.errors import ConfigError, DataError

REQUIRED = ("batch_size", "optimizer", "lr")
DEFAULTS: dict[str, Any] = {"seed": 0, "workload": "imported", "parameters": None, "status": None}

_NUMBERS = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SHAPES = {"batch_size": r"\d+", "seed": r"\d+", "parameters": r"\d+", "lr": _NUMBERS}
_SHOWN = 3  # Names in a message
_NAMED = {"batch_size": ("batch_size",), "optimizer": ("optimizer",), "lr": ("lr", "learning_rate")}
_WAYS = (
    "give it in a column of the source (--column NAME=THEIRS), with --pattern 'b{batch_size}-lr{lr}' where names say "
    "it, with --runs FILE, a table with a row per run and the columns run, batch_size, optimizer and lr, or with --set "
    "NAME=VALUE for all"
)


def facts_of(
    runs: Sequence[ImportedRun], settings: Settings, notes: list[str]
) -> tuple[list[ImportedRun], list[dict[str, Any]]]:
    """Return the runs that count, and all of :data:`~analysis.read.importers.settings.FACTS` for every one.

    ``notes`` gets a line for what matched no run, and for runs that did not finish by their status. Facts that are
    missing (of all runs at once), out of their domain, or given with two values are refused.
    """
    listed = _listed(runs, settings, notes)
    pattern = None if settings.pattern is None else _compiled(settings.pattern)
    constants = {name: value for name, value in settings.constants.items() if name in FACTS}
    asked = {name: title for name, title in settings.columns.items() if name in FACTS and title.startswith(CONFIG)}
    run_facts = []
    for run, row in zip(runs, listed, strict=True):
        where = f"run {run.name} ({run.place})"
        # without a config a column of the table may be called so
        looked_up = {name: title for name, title in asked.items() if run.config or name not in run.facts}
        stated = {**run.facts, **{name: lookup(run.config, title, where) for name, title in looked_up.items()}}
        matched = {} if pattern is None else _matched(run, pattern, str(settings.pattern))
        origins = [run.place, settings.runs, "--pattern", "--set"]
        run_facts.append(_agreed(run, list(zip(origins, (stated, row, matched, constants), strict=True))))
    runs, run_facts = by_status(runs, run_facts, settings, notes)
    _require(runs, run_facts)
    for run in runs if "batch_size" in asked else ():
        values = {f"{CONFIG}{key}": [value] for key, value in flat(run.config)}
        if words := of_part(asked["batch_size"], values):
            raise DataError(f"run {run.name}: {words}")
    each = settings.tokens_per_example if settings.batch_unit == "tokens" else None
    for run, facts in zip(runs, run_facts, strict=True):
        if (size := facts["batch_size"]) % (each or 1):
            raise DataError(
                f"run {run.name}: a batch of {size} tokens is not a whole number of examples of {each} tokens; correct "
                "--tokens-per-example, or the batch size"
            )
        facts["batch_size"] = size // (each or 1)
    return runs, [DEFAULTS | facts for facts in run_facts]


def _agreed(run: ImportedRun, stated: Sequence[tuple[Any, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the single value of every fact on which the places agree."""
    facts: dict[str, tuple[Any, str]] = {}
    for origin, name, cell in ((origin, *named) for origin, row in stated for named in row.items()):
        if cells.empty(cell):
            continue
        where = f"by {origin}" if origin in ("--pattern", "--set") else f"in {origin}"
        try:
            value = fact(name, cell)
        except ValueError as error:
            raise DataError(f"run {run.name}, {name} {where}: {error}; correct it") from None
        before = facts.setdefault(name, (value, where))
        if before[0] != value:
            raise DataError(f"run {run.name}: {name} is {before[0]} {before[1]} and {value} {where}; keep one")
    return {name: value for name, (value, _) in facts.items()}


def _require(runs: Sequence[ImportedRun], run_facts: Sequence[Mapping[str, Any]]) -> None:
    missing: dict[tuple[str, ...], list[str]] = {}
    for name in REQUIRED:
        without = tuple(run.name for run, facts in zip(runs, run_facts, strict=True) if name not in facts)
        missing.setdefault(without, []).append(name)
    lacking = [
        f"{', '.join(names)} of {len(without)} of {len(runs)} runs ({some(without, _SHOWN)})"
        for without, names in missing.items()
        if without
    ]
    if lacking:
        keys = [*(f"{CONFIG}{key}" for key, _ in flat(runs[0].config)), *runs[0].metrics]
        held = {
            name: [key for key in keys if re.split("[./]", key)[-1].lower() in words] for name, words in _NAMED.items()
        }
        if not held["batch_size"] and (product := whole_batch(keys)):
            held["batch_size"] = [product]
        asked = [
            f"--column {shlex.quote(f'{name}={held[name][0]}')}"
            for name in REQUIRED
            if len(held[name]) == 1 and any(name not in facts for facts in run_facts)
        ]
        stored = f"if its own settings or columns say it, pass {' '.join(asked)}; or " if asked else ""
        first = next(name for name in REQUIRED if any(name not in facts for facts in run_facts))
        raise ConfigError(f"not known: {'; '.join(lacking)}; {stored}{_WAYS.replace('NAME', first)}")


def some(names: Sequence[str], most: int) -> str:
    """Return the first of many names, for a message."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _listed(runs: Sequence[ImportedRun], settings: Settings, notes: list[str]) -> list[dict[str, Any]]:
    """Return the row of ``--runs`` for every run; empty if it has none."""
    if settings.runs is None:
        return [{} for _ in runs]
    table, settings = settled(settings.runs, settings)
    titles = {name: settings.columns.get(name, name) for name in ("run", *FACTS)}
    titles = {name: title if title in table.columns else name for name, title in titles.items()}
    column, rows = titles.pop("run"), dict[str, dict[str, Any]]()
    table.need(column, "it needs one with the names of the runs; --column run=THEIRS says which it is")
    for index, cell in enumerate(table.columns[column]):
        name = "" if cells.empty(cell) else str(cell).strip()
        if not name or name in rows:
            raise table.error(index, column, f"run {name!r} {'appears twice' if name else 'is empty'}")
        rows[name] = {fact: table.columns[title][index] for fact, title in titles.items() if title in table.columns}
    owners = Counter(name for run in runs for name in run.names)
    for run in runs:
        for name in run.names:
            if name in rows and owners[name] > 1:
                raise DataError(f"{table.name}: {owners[name]} runs are called {name}; give the path, as in {run.name}")
    unknown = [name for name in rows if name not in owners]
    if unknown:
        notes.append(f"{table.name}: {len(unknown)} rows match no run: {', '.join(unknown[:_SHOWN])}")
    return [next((rows[name] for name in run.names if name in rows), {}) for run in runs]


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile the pattern to a regular expression; ``*`` matches anything."""
    names = re.findall(r"\{([^{}]*)\}", pattern)
    for name in names:
        if name not in FACTS:
            raise ConfigError(f"--pattern {pattern!r}: {{{name}}} is unknown; known are {', '.join(FACTS)}")
        if names.count(name) > 1:
            raise ConfigError(f"--pattern {pattern!r} has {{{name}}} twice")
    if not names:
        raise ConfigError(
            f"--pattern {pattern!r} names nothing; as in {{optimizer}}-b{{batch_size}}-lr{{lr}}-s{{seed}}"
        )
    text = re.escape(pattern).replace(r"\*", ".*")
    for name in names:
        text = text.replace(rf"\{{{name}\}}", f"(?P<{name}>{_SHAPES.get(name, '[^/]+?')})")
    return re.compile(rf"(?:.*/)?{text}", re.ASCII)


def _matched(run: ImportedRun, pattern: re.Pattern[str], text: str) -> dict[str, Any]:
    match = next(filter(None, map(pattern.fullmatch, run.names)), None)
    if match is None:
        deeper = any(map(_compiled(f"{text}/*").fullmatch, run.names))
        other = f"--pattern {f'{text}/*'!r} does" if deeper else "rename it, leave the pattern out, or use --runs FILE"
        raise DataError(f"run {run.name} does not match --pattern {text!r}; {other}")
    return match.groupdict()
