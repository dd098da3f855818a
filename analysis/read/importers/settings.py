"""What the user says about the curves: metric, target, units. None of it has a default."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.formatting import shown
from analysis.read import cells
from analysis.read.table import header_of
from analysis.read.titles import doubt, parts_of
from cbs.errors import ConfigError
from cbs.trial.record import TrialStatus
from cbs.trial.target import Target

FACTS = ("batch_size", "optimizer", "lr", "seed", "workload", "parameters", "status")
"""Facts about a run, by the names used in columns, patterns and ``--set``."""

AXES = ("step", "examples", "tokens")
"""Possible x axes of a curve: optimizer updates, examples, tokens."""

CONFIG = "config."  # Prefix that refers to a key of the run's settings instead of a column

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+,:=()@ -]{0,99}")
_ASKED = {
    "metric": "--metric NAME",
    "direction": "--direction below|above",
    "target": "--target VALUE",
    "example_unit": "--example-unit UNIT (such as sequence)",
    "metric_unit": "--metric-unit UNIT (such as nats/token)",
}


def missing(**given: Any) -> list[str]:
    """Return the options that are required and not given, by the names of :class:`Settings`."""
    absent = [flag for name, flag in _ASKED.items() if given.get(name) in (None, "")]
    if given.get("batch_unit") == "tokens" and given.get("tokens_per_example") is None:
        absent.append("--tokens-per-example N (batch sizes are in tokens)")
    return absent


def ask_for(flags: Sequence[str]) -> ConfigError:
    """Return the error that names all missing options."""
    return ConfigError(f"metric, target and units have to be given, never guessed; missing: {', '.join(flags)}")


def fact(name: str, cell: Any) -> Any:
    """Parse and check the value of one of :data:`FACTS`, or the name of a run; a ``ValueError`` says what is wrong."""
    if name == "run":
        return str(cell).strip()
    if name in ("batch_size", "parameters", "seed"):
        return cells.whole(cell, 0 if name == "seed" else 1)
    if name == "lr":
        value = cells.number(cell)
        if not 0 < value < float("inf"):
            raise ValueError(f"{cells.shown(cell)} is not a learning rate above 0")
        return value
    text = cell.strip() if isinstance(cell, str) else ""
    if not text or not text.isprintable() or len(text) > 200:
        raise ValueError(f"{cells.shown(cell)} is not a name")
    if name == "optimizer" and not _NAME.fullmatch(text):
        raise ValueError(f"{cells.shown(cell)} cannot be part of a folder's name; use letters, digits and _.+,:=()@-")
    return text.upper() if name == "status" else text


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to read the runs; checked when created, and everything that is missing is named at once.

    Attributes:
        metric: name of the metric in the source.
        direction: ``"below"`` or ``"above"``, which side of the target is better.
        target: value of the metric that later analyses use by default; the curves are kept whole.
        example_unit: what one example is.
        metric_unit: unit of the metric.
        tokens_per_example: number of tokens per example, if examples have tokens.
        batch_unit: ``"examples"``, or ``"tokens"`` if batch sizes are given in tokens.
        columns: titles of columns in the source, by the names used here.
        constants: facts that hold for all runs, as text.
        runs: table with a column ``run`` and facts about each run.
        pattern: pattern of the names of the runs, such as ``"{optimizer}-b{batch_size}-lr{lr}-s{seed}"``.
        trials: number of trials to take at every batch size; ``None`` for all.
        statuses: what words of a column ``status`` mean, by the names of ``TrialStatus``; both in capitals.
        examples_per_epoch: number of examples of an epoch, if the axis of the curves counts epochs.
    """

    metric: str | None = None
    direction: str | None = None
    target: float | None = None
    example_unit: str | None = None
    metric_unit: str | None = None
    tokens_per_example: int | None = None
    batch_unit: str = "examples"
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    runs: Path | None = None
    pattern: str | None = None
    trials: int | None = None
    statuses: Mapping[str, str] = field(default_factory=dict)
    examples_per_epoch: int | None = None

    def __post_init__(self) -> None:
        absent = missing(**vars(self))
        if absent:
            raise ask_for(absent)
        if self.batch_unit not in ("examples", "tokens"):
            raise ConfigError(f"--batch-unit must be examples or tokens, got {self.batch_unit!r}")
        for name in ("tokens_per_example", "trials", "examples_per_epoch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        known = ("run", *FACTS, *AXES, str(self.metric))
        for name in self.columns:
            if name not in known:
                raise ConfigError(f"--column {name}=...: no column of ours; ours are {', '.join(known)}")
        axes = [name for name in AXES if name in self.columns]
        if len(axes) > 1:
            raise ConfigError(f"--column gives {' and '.join(axes)}; a curve has one axis")
        unit = "tokens" if self.batch_unit == "tokens" else f"{self.example_unit}s"
        for name, title in self.columns.items():
            if (words := doubt(name, title, unit)) and not (name == "step" and self.examples_per_epoch):
                instead = " with --batch-unit tokens --tokens-per-example N" * words.endswith("say so")
                raise ConfigError(words + instead)
        if self.examples_per_epoch is not None and axes not in ([], ["step"]):
            raise ConfigError(f"--examples-per-epoch is for an axis of epochs, and --column gives one of {axes[0]}")
        for word, meant in self.statuses.items():
            if meant not in set(TrialStatus):
                raise ConfigError(f"--status {word}={meant}: a run is one of {', '.join(TrialStatus)}")
        for name, value in self.constants.items():
            if name not in ("run", *FACTS):
                raise ConfigError(f"--set {name}=...: unknown; known are {', '.join(('run', *FACTS))}")
            try:
                fact(name, value)
            except ValueError as error:
                raise ConfigError(f"--set {name}: {error}") from None
        self.as_target()

    @property
    def measured(self) -> str:
        """Name of the metric in the source."""
        return self.columns.get(str(self.metric), str(self.metric))

    def axis(self, default: str, unit: str = "step") -> tuple[str, str]:
        """Return unit and title of the axis: the renamed one, otherwise ``default`` in ``unit``."""
        return next(((name, self.columns[name]) for name in AXES if name in self.columns), (unit, default))

    @property
    def fact_columns(self) -> list[str]:
        """Titles of the columns from which facts, and the name of a run, are to be read."""
        theirs = dict.fromkeys(self.columns[name] for name in ("run", *FACTS) if name in self.columns)
        return [part for title in theirs if not title.startswith(CONFIG) for part in parts_of(title)]

    @functools.cached_property
    def listed(self) -> list[str]:
        """Titles of the columns of the table of runs, which may have what the source lacks."""
        return [] if self.runs is None else header_of(self.runs)

    def as_target(self) -> Target:
        """Return the target of the sweep."""
        return Target(metric=str(self.metric), value=self.target, direction=self.direction)  # type: ignore[arg-type]

    @property
    def units(self) -> dict[str, Any]:
        """Units, as stored in trials and ``sweep.json``."""
        return {name: getattr(self, name) for name in ("example_unit", "tokens_per_example", "metric_unit")}

    def protocol(self) -> dict[str, Any]:
        """Return what all runs of the folder share, as stored in ``sweep.json``."""
        target = self.as_target().to_json()
        return {"stops_at_target": False, "prune_factor": None, "target": target, **self.units}

    def to_json(self) -> dict[str, Any]:
        """Return the settings that were given, as plain JSON values."""
        given = {name: value for name, value in shown(self).items() if value or name == "target"}
        return given | ({"runs": str(self.runs)} if self.runs else {})
