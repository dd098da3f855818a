"""The commands about sweeps: one file each, a thin wrapper around one function of the library.

A module here has a function ``command`` and becomes the command of the same name. Whatever it needs beyond typer is
imported when it runs, so that ``cbs --help`` is quick; names in help texts are read from the source files of the
registries.
"""

import copy
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, get_args

import typer

PANEL = "Measure"  # Heading in ``cbs --help`` for commands that name no other

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one field, e.g. workload.size=200k. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON on standard output.")]


def panel(name: str, make: Callable[..., Any], only: Collection[str] = ()) -> Callable[..., Any]:
    """Return a function that makes options, as :func:`analysis.command_options.options` takes it, with its options
    grouped under one heading of the help text; ``only`` names those to take, the others have their defaults."""
    parameters = []
    for parameter in inspect.signature(make, eval_str=True).parameters.values():
        kind, option = get_args(parameter.annotation)
        shown = copy.copy(option)
        shown.rich_help_panel = name
        if parameter.name in (only or (parameter.name,)):
            parameters.append(parameter.replace(annotation=Annotated[kind, shown]))

    def made(**given: Any) -> Any:
        return make(**given)

    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return made
