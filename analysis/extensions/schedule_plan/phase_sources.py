"""Sources of a plan's phases: a sweep, a noise trace, or a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from analysis.config import AnalysisConfig
from analysis.extensions.schedule_plan.of_curve import of_curve
from analysis.extensions.schedule_plan.of_sweep import of_sweep
from analysis.extensions.schedule_plan.of_trace import of_trace
from analysis.extensions.schedule_plan.source import PhaseSource
from cbs.errors import ConfigError
from cbs.schedules.batch_size.text import parse_amount


def sources(
    results: str | os.PathLike[str] | None,
    config: AnalysisConfig,
    *,
    targets: Sequence[float] | None = None,
    trace: str | os.PathLike[str] | None = None,
    curve: str | os.PathLike[str] | None = None,
    ratio: float = 1.0,
    optimizer: str | None = None,
    budget: str | None = None,
    tokens_per_example: int | None = None,
) -> tuple[list[PhaseSource], int | None]:
    """Return the phases, one source per optimizer, and the budget in examples.

    The budget is given in tokens if an example has tokens. The other arguments are passed to :func:`.of_sweep`,
    :func:`.of_trace` or :func:`.of_curve`, which may raise errors; incompatible options are a ``ConfigError``.
    """
    if tokens_per_example is not None and tokens_per_example < 1:
        raise ConfigError(f"--tokens-per-example must be at least 1, got {tokens_per_example}")
    if targets and results is None:
        raise ConfigError("--target goes with a results folder")
    if trace is None and ratio != 1.0:
        raise ConfigError("--ratio goes with --trace")
    if not ratio > 0:
        raise ConfigError(f"--ratio must be above 0, got {ratio:g}")
    asked = None if budget is None else parse_amount(budget)
    if curve is not None:
        end = None if asked is None else asked // (tokens_per_example or 1)
        return [of_curve(curve, config, end=end, tokens_per_example=tokens_per_example, optimizer=optimizer)], end
    if trace is not None:
        sources_of_phases = [of_trace(trace, config, ratio, optimizer, tokens_per_example)]
    else:
        assert results is not None
        sources_of_phases = [
            _counted(source, tokens_per_example) for source in of_sweep(results, config, targets, optimizer)
        ]
    lengths = {source.tokens_per_example for source in sources_of_phases}
    if asked is not None and len(lengths) > 1:
        raise ConfigError("examples differ in length between these optimizers: choose one with --optimizer")
    return sources_of_phases, None if asked is None else max(1, asked // (lengths.pop() or 1))


def _counted(source: PhaseSource, tokens_per_example: int | None) -> PhaseSource:
    """Return ``source`` with the number of tokens per example, which its sweep may not record."""
    known = source.tokens_per_example
    if None not in (known, tokens_per_example) and known != tokens_per_example:
        raise ConfigError(f"--tokens-per-example {tokens_per_example}: examples of these results have {known}")
    return replace(source, tokens_per_example=known or tokens_per_example)
