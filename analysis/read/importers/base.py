"""What a format hands over: runs with what the source itself says about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from analysis.arrays import Array
from cbs.registry import Registry

FACTS = ("batch_size", "optimizer", "lr", "seed", "workload", "parameters", "status")
"""What can be told about a run, by the names that columns, patterns and ``--set`` use."""

AXES = ("step", "examples", "tokens")
"""What a curve may be drawn against: optimizer updates, examples, tokens."""

EMPTY: Array = np.empty(0)


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


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to look for in a source.

    Attributes:
        metric: name of the metric in the source.
        columns: our name -> theirs.
        constants: what holds for all runs.
        trials: number of trials to take at every batch size; ``None`` for all.
    """

    metric: str
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    trials: int | None = None

    def column(self, name: str) -> str:
        """Their name of our column."""
        return self.columns.get(name, name)

    def axis(self, default: str) -> tuple[str, str]:
        """Unit of the axis and their name of it: the one that was renamed, else ``default`` as optimizer updates."""
        for unit in AXES:
            if unit in self.columns:
                return unit, self.columns[unit]
        return "step", default


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a source holds.

    Attributes:
        runs: one or more.
        metrics: the names a metric can have there.
        files: what was read; empty for a source that is no file.
        notes: what was left out, one line each.
    """

    runs: list[Run]
    metrics: list[str]
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Importer(Protocol):
    """A format. Implementations have no state."""

    def claims(self, source: str) -> bool:
        """Whether this looks like a source of the format; used where the format is not named."""

    def read(self, source: str, request: Request) -> Found:
        """All runs of a source.

        Raises:
            DataError: if something is missing, damaged or not of the format: the file, the run, the remedy.
            MissingDependencyError: if the format needs a package that is not installed.
        """


IMPORTERS: Registry[type[Importer]] = Registry("import format", "analysis.read.importers")
