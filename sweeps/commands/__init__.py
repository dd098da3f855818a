"""The commands about sweeps: one file each, a thin wrapper around one function of the library.

A module here has a function ``command`` and becomes the command of the same name. Whatever it needs beyond typer is
imported when it runs, so that ``cbs --help`` is quick; names in help texts are read from the source files of the
registries.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

PANEL = "Measure"
"""Heading in ``cbs --help`` for commands that name no other."""

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one field, e.g. workload.size=200k. Repeats."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON on standard output.")]


def panel(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes options, as :func:`analysis.options.options` takes it, with its options grouped
    under one heading of the help text."""
    annotations = inspect.get_annotations(make, eval_str=True)
    for parameter in inspect.signature(make).parameters:
        annotations[parameter].__metadata__[0].rich_help_panel = name
    make.__annotations__ = annotations
    return make
