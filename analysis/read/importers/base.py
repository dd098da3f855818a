"""What a format hands over: runs with what the source itself says about them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from analysis.arrays import Array
from analysis.read import cells
from cbs.record import TrialStatus
from cbs.registry import Registry

FACTS = ("batch_size", "optimizer", "lr", "seed", "workload", "parameters", "status")
"""What can be told about a run, by the names that columns, patterns and ``--set`` use."""

AXES = ("step", "examples", "tokens")
"""What a curve may be drawn against: optimizer updates, examples, tokens."""

EMPTY: Array = np.empty(0)

CONFIG = "config."
"""In front of what a column is renamed to: a key of the run's settings instead of a column."""

ANY_TABLE, COLUMNS, LAYOUT = range(3)
"""How sure a format is of a file: it is a table, it has the columns of the format, it lies and is called as only the
format does."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+,:=()@ -]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run as the source tells it.

    Attributes:
        name: what the source calls it; unique in the import.
        place: file or address, for messages.
        axis: one entry per measurement, in ``unit``; any order.
        values: the metric at those points; no entry at all where the source has none of this run.
        unit: one of :data:`AXES`.
        facts: those of :data:`FACTS` that the source states, unchecked.
        aliases: other names a table of runs may know it by.
        config: the source's own record of the settings, for ``--column lr=config.KEY``.
        metaparameters: tuned settings other than the learning rate, kept beside the trials.
        max_steps: budget in optimizer updates; ``None`` where the source has none.
        metrics: names that a metric can have there.
        files: that were read; none for a source that is no file.
    """

    name: str
    place: str
    axis: Array = field(default_factory=lambda: EMPTY)
    values: Array = field(default_factory=lambda: EMPTY)
    unit: str = "step"
    facts: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    metaparameters: Mapping[str, Any] = field(default_factory=dict)
    max_steps: int | None = None
    metrics: Iterable[str] = ()
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to look for in a source.

    Attributes:
        metric: name of the metric in the source.
        columns: our name -> theirs.
        constants: what holds for all runs.
        trials: number of trials to take at every batch size; ``None`` for all.
        listed: columns of the table of runs, which may have what a source does not.
    """

    metric: str
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    trials: int | None = None
    listed: Container[str] = ()

    def axis(self, default: str, unit: str = "step") -> tuple[str, str]:
        """Unit of the axis and their name of it: the one that was renamed, else ``default``, in ``unit``."""
        return next(((name, self.columns[name]) for name in AXES if name in self.columns), (unit, default))

    @property
    def fact_columns(self) -> list[str]:
        """Their names of the columns that facts, and the name of a run, are asked to be read from."""
        theirs = [self.columns[name] for name in ("run", *FACTS) if name in self.columns]
        return list(dict.fromkeys(title for title in theirs if not title.startswith(CONFIG)))


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
        found = frozenset(files)
        return cls(why=f"{len(found)} {what}", files=found, certainty=certainty) if found else None


class Importer(Protocol):
    """A format. Implementations have no state.

    Attributes:
        expected: what a source of the format is, for the message where there is none.
    """

    expected: str

    def claims(self, source: str) -> Claim | None:
        """Why this looks like a source of the format, where it does; used where the format is not named."""

    def read(self, source: str, request: Request, notes: list[str]) -> Iterator[Run]:
        """All runs of a source, and what was left out, one line each, in ``notes``.

        Raises:
            DataError: if something is missing, damaged or not of the format: the file, the run, the remedy.
            MissingDependencyError: if the format needs a package that is not installed.
        """


IMPORTERS: Registry[type[Importer]] = Registry("import format", "analysis.read.importers")


def fact(name: str, cell: Any) -> Any:
    """The value of one of :data:`FACTS`, checked.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if name in ("batch_size", "parameters", "seed"):
        return cells.whole(cell, 0 if name == "seed" else 1)
    if name == "lr":
        value = cells.number(cell)
        if not 0 < value < float("inf"):
            raise ValueError(f"{cells.shown(cell)} is not a learning rate above 0")
        return value
    if not isinstance(cell, str):
        raise ValueError(f"{cells.shown(cell)} is not a name")
    text = cell.strip()
    if name == "status":
        if text.upper() not in TrialStatus.__members__:
            raise ValueError(f"{cells.shown(cell)} is none of {', '.join(TrialStatus)}")
        return TrialStatus(text.upper())
    if name == "optimizer" and not _NAME.fullmatch(text):
        raise ValueError(f"{cells.shown(cell)} cannot be part of a folder's name; use letters, digits and _.+,:=()@-")
    if not text or not text.isprintable() or len(text) > 200:
        raise ValueError(f"{cells.shown(cell)} is not a name")
    return text
