"""Run a command of ``cbs`` in this process, and read numbers with their intervals from the JSON that it prints."""

from __future__ import annotations

import contextlib
import io
import json
import pkgutil
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from analysis.config import INTERVALS
from analysis.quantities import Quantity
from cbs.errors import ConfigError, DataError
from cbs.registry.commands import command_modules, intervals_first, typed
from cbs.registry.extensions import load
from extensions.papers.experiments.base import AnswerPath, Step


def ask(line: str) -> dict[str, Any]:
    """Return the JSON that ``cbs LINE --json`` prints; the command also writes its files.

    Raises:
        ConfigError: if there is no such command, or one of its options is refused.
        CbsError: any error of the command.
    """
    everywhere, words = intervals_first(shlex.split(line))
    command = _command(words)
    given = dict(zip(everywhere[::2], everywhere[1::2], strict=True))
    kinds = {"--confidence": float, "--resamples": int}
    before = INTERVALS.set({name.removeprefix("--"): kinds[name](value) for name, value in given.items()})
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            typer.main.get_command(app)([*words, "--json"], standalone_mode=False)
    except typer.BadParameter.__mro__[1] as error:  # type: ignore[misc]
        raise ConfigError(f"cbs {line}: {error.format_message()}") from None  # type: ignore[attr-defined]
    finally:
        INTERVALS.reset(before)
    content: dict[str, Any] = json.loads(printed.getvalue())
    return content


def _command(words: list[str]) -> Any:
    """Return the function of the command, and remove its name from ``words``."""
    homes = [load(home) for home in command_modules().get(words[0], [])] if words else []
    if len(homes) == 1 and not hasattr(homes[0], "__path__"):
        del words[:1]
        return homes[0].command
    for home in homes:
        for module in pkgutil.iter_modules(getattr(home, "__path__", ())):
            if typed(module.name) in words[1:2]:
                del words[:2]
                return load(f"{home.__name__}.{module.name}").command
    raise ConfigError(f"no command '{' '.join(['cbs', *words[:2]])}'")


_VALUES = ("value", "critical_batch_size", "ratio", "lr")
"""Keys whose interval is the key ``interval`` of the same object; beside other keys it belongs to another number."""


class NoSuchNumber(DataError):
    """Raised if the JSON of an analysis lacks a number; the message says which."""


def read(contents: Mapping[str, Any], reading: AnswerPath) -> list[Quantity]:
    """Return the numbers at a path, whatever the verdicts about them: one, or one per entry of a list on the path.

    Args:
        contents: JSON of the analyses by name.
        reading: analysis and path of the number.

    Raises:
        NoSuchNumber: if the analysis does not have it.
    """
    content = contents[reading.analysis]
    *rest, last = reading.path
    found = [_quantity(holder, last, reading) for holder in _at(content, tuple(rest))]
    if reading.over is None:
        return found
    below = read(contents, reading.over)
    if len(below) not in (1, len(found)):
        raise NoSuchNumber(f"{len(found)} numbers over {len(below)}")
    return [each.over(other) for each, other in zip(found, below * (len(found) // len(below)), strict=True)]


def doubts(contents: Mapping[str, Any], reading: AnswerPath) -> list[str]:
    """Return what speaks against a number and its divisor: verdicts that are not ``ok``, and flags that are set.

    Raises:
        NoSuchNumber: if the analysis does not have one of them.
    """
    found = [
        f"{reading.analysis}: {in_short(path)} is {verdict!r}"
        for path in reading.ok
        for verdict in _at(contents[reading.analysis], path)
        if verdict not in ("ok", False)
    ]
    return found + (doubts(contents, reading.over) if reading.over else [])


def _quantity(holder: Any, last: Step, reading: AnswerPath) -> Quantity:
    (value,) = _at(holder, (last,), within=reading.path)
    beside: Sequence[Any] = (None, None)
    if isinstance(value, Mapping):
        beside = value.get("interval") or beside
        value = value.get("value")
    elif isinstance(holder, Mapping):
        own = holder.get("interval") if last in _VALUES else None
        beside = holder.get(f"{last}_interval") or own or beside
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoSuchNumber(f"{reading.analysis}: {in_short(reading.path)} is {value!r}, not a number")
    if reading.exact:
        beside = (value, value)
    return Quantity(float(value), (beside[0], beside[1]))


def _at(content: Any, path: Sequence[Step], within: Sequence[Step] = ()) -> list[Any]:
    """Return all values at a path; ``within`` is the whole path to name in an error."""
    here = [content]
    for step in path:
        here = [each for part in here for each in _steps(part, step, within or path)]
    return here


def _steps(part: Any, step: Step, path: Sequence[Step]) -> Iterator[Any]:
    key = isinstance(step, str) and isinstance(part, Mapping) and step in part
    if key or (isinstance(step, int) and isinstance(part, Sequence) and -len(part) <= step < len(part)):
        yield part[step]  # type: ignore[index]
    elif isinstance(step, Mapping) and isinstance(part, Sequence) and not isinstance(part, str):
        fitting = [entry for entry in part if all(entry.get(key) == value for key, value in step.items())]
        if not fitting or (step and len(fitting) > 1):
            raise NoSuchNumber(f"{len(fitting)} entries fit {in_words((step,))} of {in_words(path)}")
        yield from fitting
    else:
        raise NoSuchNumber(f"there is no {in_words(path)}")


def in_short(path: Sequence[Step]) -> str:
    """Return the last key of a path and the names of the entries on it, as ``verdict of merit``."""
    *_, last = (step for step in path if isinstance(step, str))
    names = [value for step in path if isinstance(step, Mapping) for value in step.values() if isinstance(value, str)]
    return last + (f" of {', '.join(names)}" if names else "")


def in_words(path: Sequence[Step]) -> str:
    """Return a path as text, as ``fits[optimizer=merit].critical_batch_size``."""
    text = ""
    for step in path:
        if isinstance(step, str):
            text += f".{step}"
        elif isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f"[{', '.join(f'{key}={value}' for key, value in step.items()) or '*'}]"
    return text.removeprefix(".")
