"""The commands that train: one file each, a thin mirror of one function of the library.

A module here has a function ``command`` and becomes the command of its own name. What it needs beyond typer is imported
when it runs, so ``cbs --help`` stays quick; names in help texts are read from the sources of the registries.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

PANEL = "Measure"
"""Under which heading ``cbs --help`` lists the commands that say nothing else."""

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one field, e.g. workload.size=200k. Repeats."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON on standard output.")]


def panel(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes options, as :func:`analysis.options.options` takes it, its options in a panel of the help
    text."""
    annotations = inspect.get_annotations(make, eval_str=True)
    for parameter in inspect.signature(make).parameters:
        annotations[parameter].__metadata__[0].rich_help_panel = name
    make.__annotations__ = annotations
    return make
