"""``cbs merge``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cbs.registry.commands import command_line
from sweeps.commands import AsJson


def command(
    results: Annotated[list[Path], typer.Argument(help="Folders of one sweep each, two or more.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new folder.")],
    as_json: AsJson = False,
) -> None:
    """Make one sweep of several that share a protocol.

    For example those of two clusters. A trial that is in several folders must have the same numbers there, bit by bit.
    The folders are not changed, and cbs sweep continues in the new one.

    Example: cbs merge results/here results/there -o results/both

    Example: cbs merge results/seeds-0-2 results/seeds-3-5 -o results/six-seeds --json
    """
    from extensions.merge.merging import merge

    done = merge(results, output, command_line())
    typer.echo(json.dumps(done.to_json(), indent=2) if as_json else "\n".join(done.lines()))
