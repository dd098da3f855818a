"""``--axis momentum=0.9,0.95``: options of optimizers as axes of a sweep.

Every combination of values is an optimizer of the sweep with its own learning-rate search. The analysis makes one curve
of them: at every batch size it takes the combination of options and learning rate with the fewest steps, chosen again
in every resample, as Shallue et al. tune momentum together with the learning rate (2019, "Measuring the Effects of Data
Parallelism on Neural Network Training", JMLR 20:112, section 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from cbs.errors import ConfigError
from cbs.registry.choices import Choice, parse_value, value_text
from sweeps.spec.overrides import options_of
from sweeps.spec.spec import Sweep


def with_axes(sweep: Sweep, axes: Iterable[str]) -> Sweep:
    """Return the sweep with axes of the form ``option=value,value,...``.

    ``option`` applies to every optimizer that has it, ``optimizer.option`` to that optimizer only.

    Args:
        sweep: the sweep, with its optimizers set.
        axes: the axes; at every batch size the best value of each is searched for.

    Raises:
        ConfigError: if an axis is wrong; the message names it and the reason.
    """
    for text in axes:
        sweep = _with_axis(sweep, text)
    return sweep


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
    names = list(dict.fromkeys(choice.name for choice in sweep.optimizers))
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
    for choice in sweep.optimizers:
        if choice.name in having and option in choice.options:
            raise ConfigError(f"--axis {text}: {choice} has a value of {option} already; leave one of the two out")
    optimizers = tuple(
        Choice(name=choice.name, options=choice.options | ({option: value} if choice.name in having else {}))
        for choice in sweep.optimizers
        for value in (values if choice.name in having else values[:1])
    )
    tuned = {name: sorted({*sweep.tuned.get(name, []), option}) for name in having}
    return sweep.replace(optimizers=optimizers, tuned=sweep.tuned | tuned)


def pooled(sweep: Sweep, choice: Choice) -> Choice:
    """Return an optimizer of the sweep without its tuned options, under which an analysis pools all their values."""
    tuned = sweep.tuned.get(choice.name, [])
    return Choice(name=choice.name, options={key: value for key, value in choice.options.items() if key not in tuned})
