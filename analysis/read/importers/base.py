"""What a format hands over: runs with what the source itself says about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from analysis.arrays import Array
from analysis.read.importers.settings import Settings
from cbs.registry import Registry

EMPTY: Array = np.empty(0)

ANY_TABLE, COLUMNS, LAYOUT = range(3)
"""How sure a format is of a file: it is a table, it has the columns of the format, it lies and is called as only the
format does."""


@dataclass(frozen=True, kw_only=True)
class Run:
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

    def read(self, source: str, settings: Settings, notes: list[str]) -> Iterator[Run]:
        """All runs of a source, and what was left out, one line each, in ``notes``.

        Raises:
            DataError: if something is missing, damaged or not of the format: the file, the run, the remedy.
            MissingDependencyError: if the format needs a package that is not installed.
        """


IMPORTERS: Registry[type[Importer]] = Registry("import format", "analysis.read.importers")
