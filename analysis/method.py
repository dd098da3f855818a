"""How every number of an analysis is made: definition, confidence, bootstrap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from analysis.definitions import DEFINITIONS, Definition, build
from cbs.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Method:
    """What an analysis may choose.

    Attributes:
        definition: name in :data:`analysis.definitions.DEFINITIONS` of the critical batch size that tables and figures
            show; all the others are evaluated beside it.
        options: of this definition.
        beside: options of the others by their name; where one is given for ``definition`` too, ``options`` wins.
        confidence: of every interval.
        resamples: of every bootstrap.
        seed: of every bootstrap; the same seed gives the same numbers.
    """

    definition: str = "pareto"
    options: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    confidence: float = 0.95
    resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            raise ConfigError(f"confidence must be between 0 and 1, got {self.confidence}")
        if self.resamples < 100:
            raise ConfigError(f"resamples must be at least 100, got {self.resamples}")
        for name in (self.definition, *self.beside):
            build(name, **self._options(name))

    @property
    def definitions(self) -> dict[str, Definition]:
        """Every definition with its options."""
        return {name: build(name, **self._options(name)) for name in DEFINITIONS}

    def _options(self, name: str) -> dict[str, Any]:
        return {**self.beside.get(name, {}), **(self.options if name == self.definition else {})}
