"""What the parameters of the commands are, from their signatures: tests enumerate them, so that none is left out."""

import inspect
from typing import Any, get_args

import cli

COMMANDS = cli.commands()


def flags_of(command: str) -> dict[str, Any]:
    """Every option, and every argument by its name."""
    parameters = [parameter for parameter in COMMANDS[command].params if "--help" not in parameter.opts]
    return {max(parameter.opts, key=len): parameter for parameter in parameters}


def kind(command: str, flag: str) -> type:
    """The type of one value of a parameter: without ``None``, lists and what typer is told."""
    signature = inspect.signature(COMMANDS[command].callback, eval_str=True)
    annotation = signature.parameters[flags_of(command)[flag].name].annotation
    while parts := [part for part in get_args(annotation) if part is not type(None)]:
        annotation = parts[0]
    return annotation
