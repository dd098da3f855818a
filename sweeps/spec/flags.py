"""Apply the options of ``cbs sweep`` to a recipe.

``--axis momentum=0.9,0.95`` makes options of optimizers axes of the sweep. Every combination of values is an optimizer
with its own learning-rate search, and the analysis makes one curve of them: at every batch size it takes the
combination of options and learning rate with the fewest steps, chosen again in every resample, as Shallue et al. tune
momentum together with the learning rate (2019, "Measuring the Effects of Data Parallelism on Neural Network Training",
JMLR 20:112, section 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_choice, parse_value, value_text
from cbs.registry.parsing import parse_batch_sizes, parse_numbers, parse_seeds
from sweeps.spec.lr_rule import is_rule, parse_lr_rule
from sweeps.spec.overrides import options_of
from sweeps.spec.spec import Sweep


def with_flags(
    sweep: Sweep,
    *,
    workload: str | None,
    optim: Iterable[str] | None,
    batch_sizes: str | None,
    lrs: str | None,
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
        "lrs": None if lrs is None or is_rule(lrs) else parse_numbers(lrs, "--lrs", float),
        "lr_rule": parse_lr_rule(lrs) if lrs is not None and is_rule(lrs) else None,
        "seeds": None if seeds is None else parse_seeds(seeds),
        "batch_schedules": _choices(schedule),
    }
    sweep = sweep.replace(**{name: value for name, value in asked.items() if value is not None})
    return with_axes(sweep if workload is None else sweep.on(workload), axis or ())


def with_axes(sweep: Sweep, axes: Iterable[str]) -> Sweep:
    """Return the sweep with tuned options of the form ``option=value,value,...``; ``option`` applies to every optimizer
    that has it, ``optimizer.option`` to that optimizer only.

    Raises:
        ConfigError: if an axis is wrong; the message names it and the reason.
    """
    for text in axes:
        sweep = _with_axis(sweep, text)
    return sweep


def _choices(texts: Iterable[str] | None) -> tuple[Choice, ...] | None:
    """Parse choices in the order given, dropping repetitions; ``None`` if there are none."""
    return tuple({str(choice): choice for choice in map(parse_choice, texts or ())}.values()) or None


def _with_axis(sweep: Sweep, text: str) -> Sweep:
    key, equals, listed = (part.strip() for part in text.partition("="))
    if not (key and equals):
        raise ConfigError(f"--axis takes option=value,value,..., got {text!r}; for example --axis momentum=0.9,0.95")
    values = parse_value(f"[{listed}]")
    texts = list(dict.fromkeys(map(value_text, values)))
    if len(texts) < len(values):
        raise ConfigError(f"--axis {text}: a value appears twice")
    if len(texts) < 2:
        raise ConfigError(f"--axis {text}: an axis takes two values or more; --set optimizer.{key}= sets one")
    names = list(dict.fromkeys(choice.name for choice in sweep.axes.optimizers))
    # names of optimizers from libraries contain a dot themselves: torch.adam.eps
    mine = next(((name, key[len(name) + 1 :]) for name in names if key.startswith(f"{name}.")), None)
    option = mine[1] if mine else key.removeprefix("optimizer.")
    having = [name for name in ([mine[0]] if mine else names) if option in options_of(name)]
    if not having:
        known = sorted(set().union(*map(options_of, names)))
        near = get_close_matches(option, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known) or 'none'}"
        raise ConfigError(
            f"--axis {text}: an axis is a setting of the sweep, as --set has them, or an option of an optimizer, and "
            f"{', '.join(names)} has no {option!r}{hint}"
        )
    for choice in sweep.axes.optimizers:
        if choice.name in having and option in choice.options:
            raise ConfigError(f"--axis {text}: {choice} has a value of {option} already; leave one of the two out")
    optimizers = tuple(
        Choice(name=choice.name, options=choice.options | ({option: value} if choice.name in having else {}))
        for choice in sweep.axes.optimizers
        for value in (values if choice.name in having else values[:1])
    )
    tuned = {name: sorted({*sweep.axes.tuned.get(name, []), option}) for name in having}
    return sweep.replace(optimizers=optimizers, tuned=sweep.axes.tuned | tuned)
