"""What a person says about the curves: metric, target, units. Nothing of it has a default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.read.importers.base import AXES, FACTS, fact
from cbs.errors import ConfigError
from cbs.target import Target

_CONSTANTS = ("run", *FACTS)
_ASKED = {
    "metric": "--metric NAME",
    "direction": "--direction below|above",
    "target": "--target VALUE",
    "example_unit": "--example-unit UNIT (such as sequence)",
    "metric_unit": "--metric-unit UNIT (such as nats/token)",
}


def missing(**given: Any) -> list[str]:
    """The flags of what has to be given and is not, by the names of :class:`Settings`."""
    absent = [flag for name, flag in _ASKED.items() if given.get(name) in (None, "")]
    if given.get("batch_unit") == "tokens" and given.get("tokens_per_example") is None:
        absent.append("--tokens-per-example N (batch sizes are in tokens)")
    return absent


def ask_for(flags: Sequence[str]) -> ConfigError:
    """The one error that names all missing flags."""
    return ConfigError(f"metric, target and units are asked for, never guessed; missing: {', '.join(flags)}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to read the runs; checked when built, and what is missing is named all at once.

    Attributes:
        metric: name of the metric in the source.
        direction: ``"below"`` or ``"above"``, which side of the target is better.
        target: value that later analyses take by default; the curves are kept whole.
        example_unit: what one example is.
        metric_unit: unit of the metric.
        tokens_per_example: tokens in an example, where that means something.
        batch_unit: ``"examples"``, or ``"tokens"`` where batch sizes are given in tokens.
        columns: our name -> theirs.
        constants: what holds for all runs, as text.
        runs: table with a column ``run`` and what is known about each.
        pattern: names of the runs, such as ``"{optimizer}-b{batch_size}-lr{lr}-s{seed}"``.
        trials: number of trials to take at every batch size; ``None`` for all.
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

    def __post_init__(self) -> None:
        absent = missing(**{name: getattr(self, name) for name in self.__dataclass_fields__})
        if absent:
            raise ask_for(absent)
        if self.batch_unit not in ("examples", "tokens"):
            raise ConfigError(f"--batch-unit must be examples or tokens, got {self.batch_unit!r}")
        for name in ("tokens_per_example", "trials"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        self._check_names()
        self.as_target()

    def _check_names(self) -> None:
        known = (*_CONSTANTS, *AXES, self.metric)
        for name in self.columns:
            if name not in known:
                raise ConfigError(f"--column {name}=...: no column of ours; ours are {', '.join(map(str, known))}")
        axes = [name for name in AXES if name in self.columns]
        if len(axes) > 1:
            raise ConfigError(f"--column gives {' and '.join(axes)}; a curve has one axis")
        for name, value in self.constants.items():
            if name not in _CONSTANTS:
                raise ConfigError(f"--set {name}=...: unknown; known are {', '.join(_CONSTANTS)}")
            try:
                if name != "run":
                    fact(name, value)
            except ValueError as error:
                raise ConfigError(f"--set {name}: {error}") from None

    def as_target(self) -> Target:
        """The target of the sweep."""
        return Target(metric=str(self.metric), value=self.target, direction=self.direction)  # type: ignore[arg-type]

    def protocol(self) -> dict[str, Any]:
        """What all runs of the folder share, as it stands in ``sweep.json``."""
        return {
            "stops_at_target": False,
            "prune_factor": None,
            "target": self.as_target().to_json(),
            "example_unit": self.example_unit,
            "tokens_per_example": self.tokens_per_example,
            "metric_unit": self.metric_unit,
        }

    def to_json(self) -> dict[str, Any]:
        """Those that were given, as plain JSON values."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
        return {
            name: dict(value) if isinstance(value, Mapping) else value for name, value in plain.items() if value
        } | {"target": self.target}
