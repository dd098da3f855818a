"""How every number of an analysis is made: definition, confidence, draws."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from cbs.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """Choices of an analysis.

    Attributes:
        definition: name of the critical batch size that tables and figures show, see
            :mod:`analysis.estimate.definitions`; all the others are evaluated beside it.
        options: options of definitions by the name of the definition.
        confidence: of every interval.
        resamples: number of draws of every answer.
        seed: of all draws; the same seed gives the same numbers.
    """

    definition: str = "least_product"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    confidence: float = 0.95
    resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            raise ConfigError(f"confidence must be between 0 and 1, got {self.confidence}")
        if self.resamples < 100:
            raise ConfigError(f"resamples must be at least 100, got {self.resamples}")


DEFAULT = AnalysisConfig()

INTERVALS: ContextVar[Mapping[str, Any]] = ContextVar("INTERVALS", default={})  # noqa: B039 - nobody changes it
"""``confidence`` and ``resamples``, where ``cbs`` was given them: once for all commands."""
