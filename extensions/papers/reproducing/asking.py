"""Run a command of ``cbs`` in this process and return its JSON."""

from __future__ import annotations

import contextlib
import io
import json
import pkgutil
import shlex
from typing import Any

import typer

from analysis.config import INTERVALS
from cbs.errors import ConfigError
from cbs.registry.commands import command_modules, intervals_first, typed
from cbs.registry.extensions import load


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
