"""Apply the options of ``cbs sweep`` to a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cbs.registry.choices import Choice, parse_choice
from cbs.registry.parsing import parse_batch_sizes, parse_numbers, parse_seeds
from sweeps.spec.axes import with_axes
from sweeps.spec.lr_rule import parse_lr_rule
from sweeps.spec.spec import Sweep


def with_flags(
    sweep: Sweep,
    *,
    workload: str | None,
    optim: Iterable[str] | None,
    batch_sizes: str | None,
    lrs: str | None,
    lr_rule: str | None,
    seeds: str | None,
    schedule: Iterable[str] | None,
    axis: Iterable[str] | None,
) -> Sweep:
    """Return the sweep with its workload and axes replaced by the options as typed; ``None`` for options not given.

    Raises:
        ConfigError: if an option cannot be parsed.
    """
    asked: dict[str, Any] = {
        "optimizers": _choices(optim),
        "batch_sizes": None if batch_sizes is None else parse_batch_sizes(batch_sizes),
        "lrs": None if lrs is None else parse_numbers(lrs, "--lrs", float),
        "lr_rule": None if lr_rule is None else parse_lr_rule(lr_rule),
        "seeds": None if seeds is None else parse_seeds(seeds),
        "batch_schedules": _choices(schedule),
    }
    sweep = sweep.replace(**{name: value for name, value in asked.items() if value is not None})
    return with_axes(sweep if workload is None else sweep.on(workload), axis or ())


def _choices(texts: Iterable[str] | None) -> tuple[Choice, ...] | None:
    """Parse choices in the order given, dropping repetitions; ``None`` if there are none."""
    return tuple({str(choice): choice for choice in map(parse_choice, texts or ())}.values()) or None
