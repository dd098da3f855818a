"""``cbs settings``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from analysis.consoles import console, errors
from sweeps.commands import AsJson


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]", help="Show the keys and meanings that contain a word. Default: all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what --set can change in a sweep, with meanings.

    Options of an optimizer are listed by 'cbs optimizers NAME'.

    Example: cbs settings cosine

    Example: cbs settings clip_norm --json
    """
    with errors.status("reading the settings"):
        from sweeps.recipes import RECIPES
        from sweeps.spec.reference import settings_about

        reference = settings_about(words or (), RECIPES.make("default"))
    if as_json:
        typer.echo(json.dumps(reference.to_json(), indent=2))
        return
    out = console()
    for line in reference.lines():
        out.print(line)
