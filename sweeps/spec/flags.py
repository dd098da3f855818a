"""What the flags of ``cbs sweep`` make of a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice
from cbs.registry.parsing import parse_batch_sizes, parse_numbers, parse_seeds
from sweeps.spec.spec import Sweep


def with_flags(
    sweep: Sweep,
    *,
    optim: Iterable[str] | None,
    batch_sizes: str | None,
    lrs: str | None,
    search: str | None,
    lr_resolution: float | None,
    seeds: str | None,
    schedule: Iterable[str] | None,
    diagnostic: Iterable[str] | None,
) -> Sweep:
    """The sweep with its axes and its search as asked for; arguments are flags as they were typed, ``None`` for absent.

    Raises:
        ConfigError: if one cannot be read, or two contradict each other.
    """
    if search == "bracket" and lrs is not None:
        raise ConfigError("--lrs lists every learning rate to try: leave out --search bracket, or --lrs")
    asked: dict[str, Any] = {
        "optimizers": _choices(optim),
        "batch_sizes": None if batch_sizes is None else parse_batch_sizes(batch_sizes),
        "lrs": None if lrs is None else parse_numbers(lrs, "--lrs", float),
        "search": search,
        "lr_resolution": lr_resolution,
        "seeds": None if seeds is None else parse_seeds(seeds),
        "batch_schedules": _choices(schedule),
        "diagnostics": tuple(dict.fromkeys(diagnostic)) if diagnostic else None,
    }
    return sweep.replace(**{name: value for name, value in asked.items() if value is not None})


def _choices(texts: Iterable[str] | None) -> tuple[Choice, ...] | None:
    """Each once, in the order they were given; ``None`` for none."""
    return tuple({str(choice): choice for choice in map(parse_choice, texts or ())}.values()) or None
